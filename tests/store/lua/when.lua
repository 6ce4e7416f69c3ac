#!lua
-- repeatable
-- Tells the time and the time to live of a key, both at one moment.
-- KEYS  1 key
-- ARGV  none
-- Reply {now in ms, PTTL of the key} as strings
--- @include "now"
return { string.format('%.0f', now()), string.format('%.0f', redis.call('PTTL', KEYS[1])) }
