#!lua flags=allow-oom
-- repeatable
-- Ends what is over its deadline, or was to end and did not within its grace time, whoever holds it.
-- KEYS  1 record log
-- ARGV  1 terms, 2 grace time in ms, 3 most
-- Reply {number of ids looked at, ms until the next is due or -1}
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
--- @include "kids"
--- @include "complete"
--- @include "ended"
--- @include "stop"
local at = now()
local due = redis.call('ZRANGE', cell .. 'deadlineZ', '-inf', at, 'BYSCORE', 'LIMIT', 0, ARGV[3])
for _, id in ipairs(due) do
  local head = head_of(id)
  if not head or head.state == 'complete' then
    off('deadlineZ', id)
  elseif flagged(head, 'ct') then
    force(id, head, at)
  else
    stop(id, head, 't', at, 'its deadline has passed', ARGV[2])
  end
end
ended_write(at)
return { #due, due_in('deadlineZ', at) }
