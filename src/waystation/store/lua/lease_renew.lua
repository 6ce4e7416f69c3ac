#!lua flags=allow-oom
-- repeatable
-- Extend a lease that the caller still owns, even if its deadline has passed meanwhile.
-- A second run extends it again.
-- Runs in a full store too, because the process that frees memory needs its lease.
--
-- KEYS    1 lease
-- ARGV    1 epoch, 2 length in ms
-- Reply   1 renewed, 0 lost: released, or acquired by another process
-- Errors  none of its own
--- @include "_now"
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] or redis.call('HGET', KEYS[1], 'until_ms') == '0' then
  return 0
end
redis.call('HSET', KEYS[1], 'until_ms', string.format('%.0f', now() + tonumber(ARGV[2])))
return 1
