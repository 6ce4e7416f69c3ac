#!lua flags=allow-oom
-- repeatable
-- Says that a process is there, and counts those that said so lately.
-- Also in a full store: it takes no more room than a name for each process.
-- KEYS  1 waystation.processes
-- ARGV  1 process, 2 after how many ms one that says nothing more is not counted
-- Reply how many there are
--- @include "_now"
local at = now()
redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', at - tonumber(ARGV[2])))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
