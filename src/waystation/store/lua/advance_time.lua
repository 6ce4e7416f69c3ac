#!lua
-- Moves the store's time forward: the shift that now() adds, and every TTL, in one step.
-- Test mode only: it walks the whole key space.
-- KEYS  1 waystation.time
-- ARGV  1 milliseconds to advance by
-- Reply {shift_ms, generation} as strings
local by = tonumber(ARGV[1])
-- First all names, then all changes: a walk that deletes on its way may see a key twice.
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
