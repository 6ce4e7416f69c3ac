#!lua
-- repeatable
-- Seal a partition, so that it rejects appends, and store which storage topic continues it.
-- A second seal changes nothing.
--
-- KEYS    1 head of the partition
-- ARGV    1 index of the storage topic that continues it, then the fields of the head to return
-- Reply   values of these fields; {} the partition does not exist
-- Errors  none of its own
--- @include "store/_now"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end
if redis.call('HSETNX', KEYS[1], 'sealed', ARGV[1]) == 1 then
  redis.call('HSET', KEYS[1], 'sealed_ms', string.format('%.0f', now()))
end
return redis.call('HMGET', KEYS[1], unpack(ARGV, 2))
