#!lua flags=no-writes
-- repeatable
-- Looks at what is left in an agent's list.
-- Agents pop from the front, so of ours all are gone that were pushed before the first of ours.
-- KEYS  1 list, 2 last number that it has got
-- ARGV  -
-- Reply {length, last number that it has got, last number that is gone}
local LOOKED_AT_MAX = 100
local pushed = redis.call('GET', KEYS[2]) or '0'
local length = redis.call('LLEN', KEYS[1])
for place = 0, math.min(length, LOOKED_AT_MAX) - 1 do
  local number = string.match(redis.call('LINDEX', KEYS[1], place), '^{"waystation":(%d+),')
  if number then
    return { length, pushed, string.format('%.0f', tonumber(number) - 1) }
  end
end
-- Behind so many of others there may be one of ours.
return { length, pushed, length <= LOOKED_AT_MAX and pushed or '0' }
