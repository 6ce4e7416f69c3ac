#!lua flags=allow-oom
-- repeatable
-- Declares an endpoint repaired, so that every process closes its breaker.
-- With '1' it also enables the endpoint and forgets a `Retry-After`.
-- KEYS  1 disabled, 2 held, 3 repaired
-- ARGV  1 endpoint, 2 '1' to enable it, 3 ms for which a declaration is kept, 4 declarations to
--       keep, 5 wake-up topic of deliverers
-- Reply 1 the endpoint was disabled or held, 0 it was not
--- @include "store/_now"
local at, found = now(), 0
if ARGV[2] == '1' then
  found = redis.call('HDEL', KEYS[1], ARGV[1]) + redis.call('HDEL', KEYS[2], ARGV[1])
end
-- Later than the declaration before, even in the same millisecond: processes compare the times.
local before = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[1]) or '0')
redis.call('ZADD', KEYS[3], math.max(at, before + 1), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', at - tonumber(ARGV[3]))
redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1 - tonumber(ARGV[4]))
-- Only a hint: deliverers read the states every second.
redis.pcall('PUBLISH', ARGV[5], 'enabled')
return found > 0 and 1 or 0
