#!lua flags=allow-oom
-- repeatable
-- Gives a lease back at once; the epoch stays, so that it never runs backwards.
-- KEYS  1 lease
-- ARGV  1 epoch
-- Reply 1 released, 0 it was not ours any more
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'until_ms', '0')
return 1
