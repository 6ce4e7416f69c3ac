#!lua flags=allow-oom
-- repeatable
-- Takes a lane with nothing in it off the register in its own slot.
-- KEYS  1 register, 2 due, 3 untold
-- ARGV  1 lane
-- Reply 1 it is off the register, 0 it is in use
if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then
  return 0
end
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
