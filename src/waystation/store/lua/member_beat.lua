#!lua flags=allow-oom
-- repeatable
-- Registers a member and returns all members that are alive.
-- Publishes to the key if a member joined, or was dropped because it had not registered in time.
-- Also runs in a full store, because it stores no more than one name per process.
-- KEYS  1 the sorted set of members, member -> time of its last beat in ms
-- ARGV  1 member, 2 milliseconds without a beat after which a member is dropped
-- Reply {now, member, member, ...}
--- @include "store/_now"
local at = now()
local came = redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[1])
local gone = redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', at - tonumber(ARGV[2])))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if came + gone > 0 then
  redis.call('PUBLISH', KEYS[1], '')
end
return { at, unpack(redis.call('ZRANGE', KEYS[1], 0, -1)) }
