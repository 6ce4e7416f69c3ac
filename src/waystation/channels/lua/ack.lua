#!lua flags=allow-oom
-- repeatable
-- Moves a cursor forward to an acknowledged message; never backwards, never past the clock.
-- KEYS  1 clock of the channel, 2 cursor of the subscriber
-- ARGV  1 clock in the handle, 2 TTL in seconds
-- Reply 'missing' | 'stale' (nothing was changed) | 'moved'
local clock = tonumber(redis.call('GET', KEYS[1]) or nil)
local cursor = tonumber(redis.call('GET', KEYS[2]) or nil)
if not clock or not cursor then
  return 'missing'
end
local handle = tonumber(ARGV[1])
local ahead = cursor < handle
local reached = handle <= clock
local valid = ahead and reached
if clock < cursor then
  -- The clock went round since: what lies ahead is above the cursor or below the clock.
  valid = ahead or reached
end
if not valid then
  return 'stale'
end
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[2], 'GT')
return 'moved'
