#!lua flags=allow-oom
-- repeatable
-- Cancels children that nobody waits for: the next 100 of the parent that has been at it the longest.
-- KEYS  1 record log
-- ARGV  1 terms, 2 grace time in ms
-- Reply {number of children looked at, ms until there is more: 0, or -1}
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
local at, swept = now(), 0
local parent = redis.call('ZRANGE', cell .. 'sweepZ', 0, 0)[1]

local function sweep(key, head, kids)
  local failed = kids.policy == 'cancel_rest' and kids.failed ~= '-'
  if not failed and head.state ~= 'complete' and not flagged(head, 'ct') then
    return true
  end
  local cause = failed and 'a child beside it has failed' or 'its parent has ended'
  while swept < 100 and kids.swept < kids.created do
    swept, kids.swept = swept + 1, kids.swept + 1
    local id = child_id(parent, kids.round, kids.swept)
    local child = head_of(id)
    if child and child.state ~= 'complete' then
      stop(id, child, 'c', at, cause, ARGV[2], true)
    end
  end
  redis.call('HSET', key, 'head', head_line(head), 'kids', kids_text(kids))
  if head.state == 'complete' then
    -- It may have been archived by now, without this.
    redis.call('PERSIST', key)
    put('toArchiveZ', at + archive_ms, parent)
  end
  return kids.swept >= kids.created
end

if parent then
  local found = redis.call('HMGET', state_key(parent), 'head', 'kids')
  local kids = kids_read(found[2])
  if not kids or sweep(state_key(parent), head_read(found[1]), kids) then
    off('sweepZ', parent)
  end
end
ended_write(at)
return { swept, due_in('sweepZ', at) }
