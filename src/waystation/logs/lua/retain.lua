#!lua flags=allow-oom
-- repeatable
-- Set the limits of a partition, unless it has limits of a higher version. The next trim applies them.
-- A second run with a version changes nothing; with version 0 it writes the same limits again.
-- Runs in a full store too, because lower limits free memory.
--
-- KEYS    1 head of the partition
-- ARGV    1 max bytes or '', 2 max age in ms or '', 3 'refuse' | 'drop_and_count',
--         4 version of these limits (0: unversioned), 5 max bytes while no reader has a hold, or ''
-- Reply   1 done, 0 the partition does not exist
-- Errors  none of its own
--- @include "_limits"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
log_limits(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
return 1
