#!lua flags=allow-oom
-- repeatable
-- Puts a node on the list of nodes, and takes those off it that were not heard for too long.
-- KEYS  1 waystation.{nodes}
-- ARGV  1 registration key, 2 ms after which a node is gone
-- Reply how many nodes are listed
--- @include "store/_now"
local at = now()
redis.call('ZADD', KEYS[1], at, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', at - tonumber(ARGV[2])))
return redis.call('ZCARD', KEYS[1])
