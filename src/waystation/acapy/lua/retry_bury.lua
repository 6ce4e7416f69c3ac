#!lua flags=allow-oom
-- repeatable
-- Makes a dead letter of a message; the oldest one makes room where there are too many.
-- KEYS  1 retry set, 2 dead, 3 failed
-- ARGV  1 member that it was (empty: it comes from elsewhere), 2 id, 3 letter without its time,
--       4 dead letters at most
-- Reply {1 or 0 where it was settled before, how many were dropped}
--- @include "store/_now"
local at, dropped = string.format('%.0f', now()), 0
if ARGV[1] ~= '' and redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  return { 0, 0 }
end
redis.call('HSET', KEYS[2], ARGV[2], at .. ' ' .. ARGV[3])
redis.call('ZADD', KEYS[3], at, ARGV[2])
while redis.call('ZCARD', KEYS[3]) > tonumber(ARGV[4]) do
  redis.call('HDEL', KEYS[2], redis.call('ZPOPMIN', KEYS[3])[1])
  dropped = dropped + 1
end
return { 1, dropped }
