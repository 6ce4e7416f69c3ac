#!lua flags=allow-oom
-- repeatable
-- Request a wake-up hint from the next append, and return the present state of the partition.
-- A second run requests another hint if a message was appended since the first run.
-- Runs in a full store too, because readers free memory.
--
-- KEYS    1 head of the partition
-- ARGV    fields of the head to return
-- Reply   values of these fields; {} the partition does not exist
-- Errors  none of its own
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end
redis.call('HSET', KEYS[1], 'watched', '1')
return redis.call('HMGET', KEYS[1], unpack(ARGV))
