#!lua flags=allow-oom
-- repeatable
-- Holds an endpoint back for all processes, because it said when to come again; never shortens that.
-- KEYS  1 held
-- ARGV  1 endpoint, 2 ms to hold it, 3 wake-up topic of deliverers
-- Reply ms that it is held
--- @include "store/_now"
local at = now()
local before = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
local til = math.max(before, at + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', til))
-- Only a hint: deliverers look again by themselves.
redis.pcall('PUBLISH', ARGV[3], 'held')
return til - at
