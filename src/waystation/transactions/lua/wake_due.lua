#!lua flags=allow-oom
-- repeatable
-- Queues all that has slept long enough.
-- KEYS  1 record log
-- ARGV  1 terms, 2 most
-- Reply {number of ids looked at, ms until the next is due or -1, ids without a state ...}
--- @include "now"
--- @include "log_trim"
--- @include "log_append"
--- @include "cell"
--- @include "head"
--- @include "due"
--- @include "queue_push"
--- @include "record"
--- @include "counts"
--- @include "sets"
--- @include "awaken"
local at, reply = now(), { 0, -1 }
local due = redis.call('ZRANGE', cell .. 'sleepingZ', '-inf', at, 'BYSCORE', 'LIMIT', 0, ARGV[2])
for _, id in ipairs(due) do
  local head = head_of(id)
  if head and ASLEEP[head.state] then
    awaken(id, head, at)
  else
    off('sleepingZ', id)
    if not head then
      reply[#reply + 1] = id
    end
  end
end
sets_write()
queue_write()
counts_write(at)
record_write(at, true)
reply[1], reply[2] = #due, due_in('sleepingZ', at)
return reply
