#!lua flags=allow-oom
-- repeatable
-- Moves the deadline of a lease that is still ours, also when it has passed and nobody noticed.
-- KEYS  1 lease
-- ARGV  1 epoch, 2 length in ms
-- Reply 1 renewed, 0 lost
--- @include "_now"
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] or redis.call('HGET', KEYS[1], 'until_ms') == '0' then
  return 0
end
redis.call('HSET', KEYS[1], 'until_ms', string.format('%.0f', now() + tonumber(ARGV[2])))
return 1
