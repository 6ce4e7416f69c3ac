#!lua flags=allow-oom
-- repeatable
-- Set the format version of a data set after a migration step has run.
-- A second run finds the new version and replies 1 again.
--
-- KEYS    1 waystation.format, 2 lease of the migration
-- ARGV    1 version before the step, 2 version after it, 3 epoch of the lease
-- Reply   1 the data set has the new version
--         0 it has a third version, or another node owns the lease
-- Errors  none of its own
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[3] then
  return 0
end
local found = redis.call('HGET', KEYS[1], 'version')
if found == ARGV[1] then
  redis.call('HSET', KEYS[1], 'version', ARGV[2])
  return 1
end
return found == ARGV[2] and 1 or 0
