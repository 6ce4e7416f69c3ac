#!lua flags=allow-oom
-- repeatable
-- Ask the next append to publish a wake-up hint, and return the state of this moment.
-- A second run asks for one more hint if a message was appended in between.
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
