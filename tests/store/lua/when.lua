#!lua
-- repeatable
-- Return the time of the store and the time to live of a key, both at the same moment.
-- KEYS    1 key
-- ARGV    none
-- Reply   {now in ms, PTTL of the key} as strings
--- @include "store/_now"
return { string.format('%.0f', now()), string.format('%.0f', redis.call('PTTL', KEYS[1])) }
