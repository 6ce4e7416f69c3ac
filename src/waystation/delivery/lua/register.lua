#!lua
-- repeatable
-- Enters a lane in the register, with a stamp that no registration has had before.
-- KEYS  1 register, 2 newest stamp
-- ARGV  1 lane
-- Reply the stamp
--- @include "store/_now"
local newest = tonumber(redis.call('GET', KEYS[2]) or '0')
local stamp = string.format('%.0f', math.max(now(), newest + 1))
redis.call('SET', KEYS[2], stamp)
redis.call('ZADD', KEYS[1], stamp, ARGV[1])
redis.pcall('PUBLISH', KEYS[1], 'lane')
return stamp
