#!lua flags=allow-oom
-- repeatable
-- Replaces what a node has reported of its open breakers, for operators who ask another node.
-- KEYS  1 breakers
-- ARGV  1 node, 2 ms for which the report is valid, 3 report
-- Reply 1
--- @include "store/_now"
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now() + tonumber(ARGV[2])) .. ARGV[3])
end
return 1
