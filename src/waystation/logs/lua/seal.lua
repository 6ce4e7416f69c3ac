#!lua
-- repeatable
-- Ends a partition: it takes nothing more, and says what follows. The first seal stays.
-- KEYS  1 head of the log
-- ARGV  1 what follows, then the fields to answer with
-- Reply the fields, or {} when there is no such log
--- @include "store/_now"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end
if redis.call('HSETNX', KEYS[1], 'sealed', ARGV[1]) == 1 then
  redis.call('HSET', KEYS[1], 'sealed_ms', string.format('%.0f', now()))
end
return redis.call('HMGET', KEYS[1], unpack(ARGV, 2))
