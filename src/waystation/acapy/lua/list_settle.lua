#!lua flags=allow-oom
-- repeatable
-- Lets go of a message that was taken off a list, for good or back to the front of the list.
-- KEYS  1 list, 2 leases, 3 taken
-- ARGV  1 number, 2 `done` or `back`
-- Reply 1, or 0 where it was settled before
local message = redis.call('HGET', KEYS[3], ARGV[1])
if not message then
  return 0
end
if ARGV[2] == 'back' then
  redis.call('LPUSH', KEYS[1], message)
end
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
