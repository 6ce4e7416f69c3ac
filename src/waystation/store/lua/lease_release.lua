#!lua flags=allow-oom
-- repeatable
-- Release a lease immediately. The key keeps its epoch so that epochs never decrease.
-- A second run replies 1 again, unless another process has acquired the lease in between.
-- Runs in a full store too, because the process that frees memory may need the lease next.
--
-- KEYS    1 lease
-- ARGV    1 epoch
-- Reply   1 released, 0 the caller no longer owned it
-- Errors  none of its own
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'until_ms', '0')
return 1
