#!lua flags=allow-oom
-- repeatable
-- Cancels transactions: at once, or at the next commit of those who hold them.
-- KEYS  1 record log
-- ARGV  1 terms, 2 owner or '' for any, 3 cause, 4 grace time in ms, then ids
-- Reply per id two words: cancelled, asked, known (it was cancelled before), final, unknown; status.
--       Or missing, load nonce
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_due"
--- @include "_queue_push"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_kids"
--- @include "_complete"
--- @include "_ended"
--- @include "_stop"
--- @include "_miss"
local at, reply, missing = now(), {}, {}
for i = 5, #ARGV do
  local id = ARGV[i]
  local head = head_of(id)
  local outcome, status = 'unknown', '-'
  if head and (head_rest(head).owner == ARGV[2] or ARGV[2] == '') then
    if head.state == 'complete' then
      outcome = head.status == 'cancelled' and 'known' or 'final'
    else
      outcome = stop(id, head, 'c', at, ARGV[3], ARGV[4], true)
    end
    status = head.status
  elseif not head and absent(id) then
    outcome = 'missing'
    missing[#missing + 1] = id
  end
  reply[#reply + 1], reply[#reply + 2] = outcome, status
end
ended_write(at)
local nonces, place = #missing > 0 and miss(at, missing), 0
for i = 1, nonces and #reply or 0, 2 do
  if reply[i] == 'missing' then
    place = place + 1
    reply[i + 1] = nonces[place]
  end
end
return reply
