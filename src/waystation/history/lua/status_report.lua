#!lua flags=allow-oom
-- repeatable
-- Store the report of a node about its history role, with the real time of the store.
-- Runs in a full store too, because operators need the status then most.
--
-- KEYS    1 status
-- ARGV    1 report, JSON
-- Reply   1
-- Errors  none of its own
--- @include "store/_real_now"
redis.call('HSET', KEYS[1], 'role', ARGV[1], 'role_ms', string.format('%.0f', real_now()))
return 1
