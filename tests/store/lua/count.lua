#!lua
-- Count the calls of this script.
-- not repeatable: a second run counts twice.
-- KEYS    1 counter
-- ARGV    none
-- Reply   the count
return redis.call('INCR', KEYS[1])
