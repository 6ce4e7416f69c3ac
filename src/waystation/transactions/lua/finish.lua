#!lua flags=allow-oom
-- repeatable
-- Completes transactions. A cancel that was asked for does not stop it: the work is done.
-- KEYS  1 record log
-- ARGV  1 terms, then items as in "moves", each with two own words: final status, output
-- Reply {log end, outcome, version, outcome, version, ...}; outcomes: done, known, refused,
--       not-running, status-invalid, unknown
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_due"
--- @include "_owned_by"
--- @include "_queue_push"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_kids"
--- @include "_complete"
--- @include "_ended"
local FINAL = {
  success = true, failed = true, aborted = true, ['internal-error'] = true, timeout = true,
  cancelled = true
}
local at, reply, from = now(), { '' }, 2
while from <= #ARGV do
  local id, drops = ARGV[from], tonumber(ARGV[from + 5])
  local own = from + 5 + drops
  local status, head = ARGV[own + 1], head_of(id)
  local outcome
  if not head then
    outcome = 'unknown'
  elseif not FINAL[status] then
    outcome = 'status-invalid'
  else
    outcome = owned(head, ARGV[from + 1], ARGV[from + 2])
    if outcome == 'refused' and head.epoch == tonumber(ARGV[from + 1])
        and head.state ~= 'running' then
      outcome = 'not-running'
    end
  end
  if not outcome then
    outcome = 'done'
    if flagged(head, 'ct') then
      -- Why it was to end is no cause of how it has ended.
      redis.call('HDEL', state_key(id), 'cause')
    end
    drop_fields(id, from + 6, own)
    head.commits = head.commits + 1
    complete(id, head, status, at, nil, ARGV[own + 2], ARGV[from + 3])
    record('finished', id, head, ARGV[from + 4])
  end
  reply[#reply + 1] = outcome
  reply[#reply + 1] = head and head.version or 0
  from = own + 3
end
reply[1] = ended_write(at)
return reply
