#!lua flags=allow-oom
-- repeatable
-- Tells which endpoints are disabled or held back, and forgets holds that are over.
-- KEYS  1 disabled, 2 held
-- ARGV  none
-- Reply {{endpoint, cause and time, ...}, {endpoint, ms left, ...}}
--- @include "now"
local at, held = now(), {}
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
return { redis.call('HGETALL', KEYS[1]), held }
