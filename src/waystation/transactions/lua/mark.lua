#!lua
-- repeatable
-- Notes that somebody waits for the ends of transactions, and forgets those who do not any more.
-- KEYS  1 record log
-- ARGV  1 ms for which they wait, then ids
-- Reply number of ids that are waited for
--- @include "now"
--- @include "cell"
local at, waiters = now(), cell .. 'waitersZ'
redis.call('ZREMRANGEBYSCORE', waiters, '-inf', at)
for i = 2, #ARGV do
  redis.call('ZADD', waiters, 'GT', string.format('%.0f', at + tonumber(ARGV[1])), ARGV[i])
end
return redis.call('ZCARD', waiters)
