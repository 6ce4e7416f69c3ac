#!lua flags=allow-oom
-- repeatable
-- Closes the gate of a lane that has nothing in it, so that it can be taken off the register.
-- Whoever looked at the gate before this cannot open it: it never says the same again.
-- KEYS  1 due, 2 failed, 3 untold, 4 gate, 5 inbox
-- ARGV  1 seconds that the gate is remembered
-- Reply 1 closed, 0 the lane is in use
--- @include "store/_now"
if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3], KEYS[5]) > 0 then
  return 0
end
local before = tonumber(redis.call('HGET', KEYS[4], 'epoch') or '0')
local epoch = string.format('%.0f', math.max(now(), before + 1))
redis.call('HSET', KEYS[4], 'state', 'closed ' .. epoch, 'epoch', epoch)
redis.call('EXPIRE', KEYS[4], ARGV[1])
return 1
