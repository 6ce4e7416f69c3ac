#!lua flags=allow-oom
-- repeatable
-- Queues all that has slept long enough.
-- What is not in the store is given to the caller to load: its time moves on, so that nobody else does,
-- and what is in the store does not wait for it. When it was to wake is in its state, in the archive.
-- KEYS  1 record log
-- ARGV  1 terms, 2 most, 3 ms for which what is given out is the caller's, 4 how many to give out at
--       most, 5 ms after which the others are looked at again
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
--- @include "_awaken"
--- @include "_miss"
--- @include "_give_out"
local at = now()
local due = redis.call('ZRANGE', cell .. 'sleepingZ', '-inf', at, 'BYSCORE', 'LIMIT', 0, ARGV[2])
for _, id in ipairs(due) do
  local head = head_of(id)
  if head and ASLEEP[head.state] then
    awaken(id, head, at)
  elseif head then
    off('sleepingZ', id)
  else
    gone(id)
  end
end
local reply = give_out('sleepingZ', at, ARGV[3], ARGV[4], ARGV[5])
sets_write()
queue_write()
counts_write(at)
record_write(at, true)
reply[1], reply[2] = #due, due_in('sleepingZ', at)
return reply
