#!lua flags=allow-oom
-- repeatable
-- Lists endpoints that are disabled, held or repaired, and the open breakers of nodes.
-- Deletes entries whose time is over.
-- KEYS  1 disabled, 2 held, 3 repaired, 4 breakers
-- ARGV  none
-- Reply {{endpoint, cause and time, ...}, {endpoint, ms left, ...},
--        {endpoint, ms of its repair, ...}, {node, report, ...}}
--- @include "store/_now"
local at, held, breakers = now(), {}, {}
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
found = redis.call('HGETALL', KEYS[4])
for i = 1, #found, 2 do
  local til, report = string.match(found[i + 1], '^(%d+) (.*)$')
  if tonumber(til or '0') <= at then
    redis.call('HDEL', KEYS[4], found[i])
  else
    breakers[#breakers + 1] = found[i]
    breakers[#breakers + 1] = report
  end
end
local repaired = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
return { redis.call('HGETALL', KEYS[1]), held, repaired, breakers }
