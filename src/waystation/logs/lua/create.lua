#!lua
-- repeatable
-- Create one partition of a log. Do nothing if the partition exists, even if it has other limits.
-- A second run changes nothing and replies 0.
--
-- KEYS    1 head of the partition
-- ARGV    1 max bytes or '', 2 max age in ms or '', 3 'refuse' | 'drop_and_count',
--         4 version of these limits (0: unversioned), 5 max bytes while no reader has a hold, or ''
-- Reply   1 created, 0 the partition existed
-- Errors  none of its own
--- @include "_limits"
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'first', 0, 'end', 0, 'ms', 0, 'bytes', 0, 'dropped', 0)
log_limits(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
return 1
