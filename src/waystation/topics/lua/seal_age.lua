#!lua flags=no-writes
-- repeatable
-- Return the time since a partition was sealed.
-- Uses the store's clock, because stored message ids expire by it.
--
-- KEYS    1 head of the partition
-- ARGV    none
-- Reply   {ms}
--         {-1}    the partition is not sealed
--         {}      the partition does not exist
-- Errors  none of its own
--- @include "store/_now"
local found = redis.call('HMGET', KEYS[1], 'first', 'sealed_ms')
if not found[1] then
  return {}
end
return { found[2] and now() - tonumber(found[2]) or -1 }
