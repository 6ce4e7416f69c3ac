#!lua flags=allow-oom
-- repeatable
-- Counts a failure of an endpoint, which is held back when there were too many.
-- So many in a row within the period, and nobody sends to it for a while, which is noted for the
-- operator. The count then begins anew.
-- KEYS  1 fails, 2 held, 3 notices (stream)
-- ARGV  1 endpoint, 2 the attempt, so that a call that is sent again counts it once, 3 limit, 4 period
--       in ms, 5 ms to hold it, 6 notice, 7 notices to keep, 8 wake-up topic of deliverers
-- Reply 1 it is held back now, 0 it is not
--- @include "store/_now"
local at, limit = now(), tonumber(ARGV[3])
local kept = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local count, til, last = string.match(kept, '^(%d+) (%d+) (.*)$')
count, til = tonumber(count or '0'), tonumber(til or '0')
if last == ARGV[2] then
  return count >= limit and 1 or 0
end
if til <= at or count >= limit then
  count, til = 0, at + tonumber(ARGV[4])
end
count = count + 1
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %.0f %s', count, til, ARGV[2]))
if count < limit then
  return 0
end
local before = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0')
before = math.max(before, at + tonumber(ARGV[5]))
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', before))
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[7], '*', 'n', ARGV[6])
-- Only a hint: deliverers look again by themselves.
redis.pcall('PUBLISH', ARGV[8], 'held')
return 1
