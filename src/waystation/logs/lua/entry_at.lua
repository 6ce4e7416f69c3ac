#!lua flags=no-writes
-- repeatable
-- Tells the bounds of a log and the first entry that exists from an offset on.
-- In one step, so that no append and no trimming comes between the two looks.
-- KEYS  1 log, 2 its head
-- ARGV  1 offset
-- Reply {first, end, offset of the next entry that exists from the given one on, or end}; {} when
--       there is no such log
local state = redis.call('HMGET', KEYS[2], 'first', 'end')
if not state[1] then
  return {}
end
local found = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', 1)[1]
return { state[1], state[2], found and string.match(found[1], '^%d+') or state[2] }
