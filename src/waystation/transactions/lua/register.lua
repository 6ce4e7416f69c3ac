#!lua flags=allow-oom
-- repeatable
-- Writes the record of a node; without a further beat it dies.
-- KEYS  1 registration
-- ARGV  1 record, JSON, 2 ms until it dies
-- Reply OK
return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
