#!lua
-- repeatable
-- Notes that somebody waits for the ends of transactions, and forgets those who do not any more.
-- The last of them is forgotten by time alone: nobody may come after it.
-- KEYS  1 record log
-- ARGV  1 ms for which they wait, then ids
-- Reply number of ids that are waited for
--- @include "store/_now"
--- @include "_cell"
local at, waiters = now(), cell .. 'waitersZ'
redis.call('ZREMRANGEBYSCORE', waiters, '-inf', at)
for i = 2, #ARGV do
  redis.call('ZADD', waiters, 'GT', string.format('%.0f', at + tonumber(ARGV[1])), ARGV[i])
end
local last = redis.call('ZRANGE', waiters, -1, -1, 'WITHSCORES')
if last[2] then
  redis.call('PEXPIRE', waiters, string.format('%.0f', tonumber(last[2]) - at))
end
return redis.call('ZCARD', waiters)
