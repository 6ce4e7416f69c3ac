#!lua flags=allow-oom
-- repeatable
-- Store that an ingest has read all logs to the ends that they had at its start.
-- Runs in a full store too, because ingest lets retention free memory.
--
-- KEYS    1 status
-- ARGV    1 number of requests that the ingest has served, 2 digest of the ends, 3 id of the lake,
--         4 ms since the ends were read
-- Reply   1
-- Errors  none of its own
--- @include "store/_real_now"
-- An ingest that started earlier may end later.
local served = tonumber(redis.call('HGET', KEYS[1], 'served') or '0')
redis.call('HSET', KEYS[1], 'served', math.max(served, tonumber(ARGV[1])), 'ends', ARGV[2],
  'lake', ARGV[3], 'ends_ms', string.format('%.0f', real_now() - tonumber(ARGV[4])))
return 1
