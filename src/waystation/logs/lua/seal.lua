#!lua
-- repeatable
-- Ends a partition: it takes nothing more, and says what follows. The first seal stays.
-- KEYS  1 head of the log
-- ARGV  1 what follows
-- Reply 1, or 0 when there is no such log
--- @include "now"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
if redis.call('HSETNX', KEYS[1], 'sealed', ARGV[1]) == 1 then
  redis.call('HSET', KEYS[1], 'sealed_ms', string.format('%.0f', now()))
end
return 1
