#!lua flags=allow-oom
-- repeatable
-- Enters an operation, with the store's time as its beginning.
-- Also in a full store: a purge, which makes room, begins with it.
-- KEYS  1 operations, 2 those that are open
-- ARGV  1 id, 2 what is asked, JSON
-- Reply the operation: state, ms of its beginning and of its end or 0, what is asked; words of one line
--- @include "store/_now"
local found = redis.call('HGET', KEYS[1], ARGV[1])
if not found then
  found = string.format('begun %.0f 0 %s', now(), ARGV[2])
  redis.call('HSET', KEYS[1], ARGV[1], found)
  redis.call('SADD', KEYS[2], ARGV[1])
end
return found
