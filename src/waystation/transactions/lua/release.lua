#!lua flags=allow-oom
-- repeatable
-- Gives back what is held, to the head of its queue, in the order given; it counts as no attempt.
-- What was to end, because it was cancelled or its deadline has passed, ends instead.
-- KEYS  1 record log
-- ARGV  1 terms, then for each: id, epoch, commits
-- Reply {log end, outcome, version, outcome, version, ...}; outcomes: done, cancelled (it has ended),
--       known (it does not run any more), refused, unknown
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
local at, reply = now(), { '' }
for i = 2, #ARGV, 3 do
  local id, epoch = ARGV[i], tonumber(ARGV[i + 1])
  local head, outcome = head_of(id), 'refused'
  local held = head and holds(head, epoch, ARGV[i + 2])
  local stopped = held and STOPPED[string.match(head.flags, '[ct]')]
  if not head then
    outcome = 'unknown'
  elseif stopped then
    outcome = 'cancelled'
    complete(id, head, stopped[1], at)
    record(stopped[2], id, head)
  elseif held then
    outcome = 'done'
    head_rest(head)
    unflag(head, 'b')
    head.state, head.node = 'queued', '-'
    redis.call('HSET', state_key(id), 'head', head_line(head, at))
    queue_push(queue_key(head), id)
    off('processingZ', id)
    off('leaseZ', id)
    record('released', id, head)
  elseif head.epoch == epoch and head.state ~= 'running' then
    outcome = 'known'
  end
  reply[#reply + 1] = outcome
  reply[#reply + 1] = head and head.version or 0
end
reply[1] = ended_write(at, true)
return reply
