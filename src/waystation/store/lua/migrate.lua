#!lua flags=allow-oom
-- repeatable
-- Gives a data set the number of its next format, after the step to it has run.
-- KEYS  1 waystation.format, 2 lease of the migration
-- ARGV  1 format that it has, 2 format that it gets, 3 epoch of the lease
-- Reply 1 when it has the new format, 0 when it has another or the lease is another's
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[3] then
  return 0
end
local found = redis.call('HGET', KEYS[1], 'version')
if found == ARGV[1] then
  redis.call('HSET', KEYS[1], 'version', ARGV[2])
  return 1
end
return found == ARGV[2] and 1 or 0
