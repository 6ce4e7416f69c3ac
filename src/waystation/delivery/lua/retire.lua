#!lua flags=allow-oom
-- repeatable
-- Takes a lane off the register, unless somebody has registered it since we looked.
-- KEYS  1 register
-- ARGV  1 lane, 2 registration time that we saw
-- Reply 1 retired, 0 it is in use
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
return redis.call('ZREM', KEYS[1], ARGV[1])
