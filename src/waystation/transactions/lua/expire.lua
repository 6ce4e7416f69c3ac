#!lua flags=allow-oom
-- repeatable
-- Ends what is over its deadline, or was to end and did not within its grace time, whoever holds it.
-- What is not in the store is given to the caller to load, as by wake_due.
-- KEYS  1 record log
-- ARGV  1 terms, 2 grace time in ms, 3 most, 4 ms for which what is given out is the caller's, 5 how
--       many to give out at most, 6 ms after which the others are looked at again
-- Reply {number of ids looked at, ms until the next is due or -1, then of what is given out: id, load
--       nonce, ...}
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
--- @include "_give_out"
local at = now()
local due = redis.call('ZRANGE', cell .. 'deadlineZ', '-inf', at, 'BYSCORE', 'LIMIT', 0, ARGV[3])
for _, id in ipairs(due) do
  local head = head_of(id)
  if not head then
    gone(id)
  elseif head.state == 'complete' then
    off('deadlineZ', id)
  elseif flagged(head, 'ct') then
    force(id, head, at)
  else
    stop(id, head, 't', at, 'its deadline has passed', ARGV[2])
  end
end
local reply = give_out('deadlineZ', at, ARGV[4], ARGV[5], ARGV[6])
ended_write(at)
reply[1], reply[2] = #due, due_in('deadlineZ', at)
return reply
