#!lua
-- Counts calls; running it twice counts twice, so it is not repeatable.
-- KEYS  1 counter
-- ARGV  none
-- Reply the count
return redis.call('INCR', KEYS[1])
