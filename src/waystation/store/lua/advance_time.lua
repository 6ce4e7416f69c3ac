#!lua
-- Move the time of the store forward: the shift that now() adds, and the TTL of every key.
-- not repeatable: a second run moves the time again.
-- Test mode only, because the script walks the whole key space.
--
-- KEYS    1 waystation.time
-- ARGV    1 milliseconds to advance by
-- Reply   {total shift in ms, generation} as strings
-- Errors  none of its own
local by = tonumber(ARGV[1])
-- Collect all keys before changing any, because SCAN may return a key twice while keys are deleted.
local left, cursor = {}, '0'
repeat
  local page = redis.call('SCAN', cursor, 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    left[key] = redis.call('PTTL', key)
  end
until cursor == '0'
for key, ms in pairs(left) do
  if ms > by then
    redis.call('PEXPIRE', key, ms - by)
  elseif ms >= 0 then
    redis.call('UNLINK', key)
  end
end
local shift = redis.call('HINCRBY', KEYS[1], 'shift_ms', ARGV[1])
local generation = redis.call('HINCRBY', KEYS[1], 'generation', 1)
redis.call('PUBLISH', KEYS[1], 'advanced')
return { string.format('%.0f', shift), string.format('%.0f', generation) }
