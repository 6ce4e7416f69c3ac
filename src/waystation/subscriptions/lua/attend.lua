#!lua flags=allow-oom
-- repeatable
-- Says that a delivery node is there, and tells who else is; all hear of one that came or fell silent.
-- Also in a full store: it takes no more room than a name for each node.
-- KEYS  1 waystation.{delivery}
-- ARGV  1 node, 2 after how many ms one that says nothing more is gone
-- Reply {now, node, node, ...}
--- @include "store/_now"
local at = now()
local came = redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[1])
local gone = redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', at - tonumber(ARGV[2])))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if came + gone > 0 then
  redis.call('PUBLISH', KEYS[1], '')
end
return { at, unpack(redis.call('ZRANGE', KEYS[1], 0, -1)) }
