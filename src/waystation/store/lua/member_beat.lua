#!lua flags=allow-oom
-- repeatable
-- Register a member, drop silent ones, and return all members that are alive.
-- Publishes a hint to the key if a member joined or was dropped.
-- A second run renews the registration again.
-- Runs in a full store too, because it stores only one name per process.
--
-- KEYS    1 sorted set of members: member -> time of its last beat in ms
-- ARGV    1 member, 2 time without a beat after which a member is dropped, in ms
-- Reply   {time of the store in ms, member, member, ...}
-- Errors  none of its own
--- @include "store/_now"
local at = now()
local came = redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[1])
local gone = redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', at - tonumber(ARGV[2])))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if came + gone > 0 then
  redis.call('PUBLISH', KEYS[1], '')
end
return { at, unpack(redis.call('ZRANGE', KEYS[1], 0, -1)) }
