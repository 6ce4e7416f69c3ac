#!lua flags=no-writes
-- repeatable
-- Return the bounds of a partition and the first existing message at or after an offset.
-- One script reads both, so that no append or trim changes the partition between the two reads.
--
-- KEYS    1 entries of the partition, 2 its head
-- ARGV    1 offset
-- Reply   {first offset, end offset, offset of the message or end offset}
--         {} the partition does not exist
-- Errors  'DAMAGED_LOG <key>': a number of the head is no integer
--- @include "_integer"
local state = redis.call('HMGET', KEYS[2], 'first', 'end')
if not state[1] then
  return {}
end
log_integer(state[1], KEYS[2])
log_integer(state[2], KEYS[2])
local found = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', 1)[1]
return { state[1], state[2], found and string.match(found[1], '^%d+') or state[2] }
