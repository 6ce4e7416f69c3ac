#!lua
-- repeatable
-- Keeps a value, and counts how often it ran, which a caller of a repeatable script does not care for.
-- KEYS  1 value, 2 count
-- ARGV  1 value
-- Reply the value
redis.call('SET', KEYS[1], ARGV[1])
redis.call('INCR', KEYS[2])
return ARGV[1]
