#!lua
-- repeatable
-- Set a value and count the runs. Callers ignore the count.
-- KEYS    1 value, 2 count
-- ARGV    1 value
-- Reply   the value
redis.call('SET', KEYS[1], ARGV[1])
redis.call('INCR', KEYS[2])
return ARGV[1]
