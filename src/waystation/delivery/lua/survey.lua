#!lua flags=allow-oom
-- repeatable
-- Tells which endpoints are disabled, held back or failing, and forgets what is over.
-- KEYS  1 disabled, 2 held, 3 fails
-- ARGV  none
-- Reply {{endpoint, cause and time, ...}, {endpoint, ms left, ...}, {endpoint that fails, ...}}
--- @include "now"
local at, held, failing = now(), {}, {}
local found = redis.call('HGETALL', KEYS[2])
for i = 1, #found, 2 do
  local left = tonumber(found[i + 1]) - at
  if left <= 0 then
    redis.call('HDEL', KEYS[2], found[i])
  else
    held[#held + 1] = found[i]
    held[#held + 1] = left
  end
end
found = redis.call('HGETALL', KEYS[3])
for i = 1, #found, 2 do
  if tonumber(string.match(found[i + 1], '^%d+ (%d+)') or '0') <= at then
    redis.call('HDEL', KEYS[3], found[i])
  else
    failing[#failing + 1] = found[i]
  end
end
return { redis.call('HGETALL', KEYS[1]), held, failing }
