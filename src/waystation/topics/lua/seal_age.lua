#!lua flags=no-writes
-- repeatable
-- Tells how long a partition has been sealed, by the clock that its ids are forgotten by.
-- KEYS  1 head of the log
-- ARGV  none
-- Reply {ms}, {-1} when it is not sealed, {} when there is no such log
--- @include "store/_now"
local found = redis.call('HMGET', KEYS[1], 'first', 'sealed_ms')
if not found[1] then
  return {}
end
return { found[2] and now() - tonumber(found[2]) or -1 }
