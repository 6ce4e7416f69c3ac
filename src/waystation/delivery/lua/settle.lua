#!lua flags=allow-oom
-- repeatable
-- Settles a claimed item, and records its attempt. A claim that has passed to another settles nothing.
-- KEYS  1 due, 2 items, 3 failed, 4 untold, 5 gate, 6 attempts (stream)
-- ARGV  1 id, 2 token, 3 verdict: done | retry | failed | release, 4 ms to wait before a retry, or in
--       which a failure is to be told, 5 cause, 6 record of the attempt ('' = none), 7 records to
--       keep, 8 seconds to keep them, 9 failed items to keep
-- Reply 1 settled, 0 the claim is not ours (any more)
--- @include "now"
local id, verdict = ARGV[1], ARGV[3]
if redis.call('HGET', KEYS[2], id .. '.token') ~= ARGV[2] then
  return 0
end
local at = now()
if ARGV[6] ~= '' then
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[7], '*', 'a', ARGV[6])
  redis.call('EXPIRE', KEYS[6], ARGV[8])
end
redis.call('HDEL', KEYS[2], id .. '.token')
if verdict == 'done' then
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id, id .. '.attempts', id .. '.cause')
elseif verdict == 'release' then
  redis.call('ZADD', KEYS[1], at, id)
else
  redis.call('HINCRBY', KEYS[2], id .. '.attempts', 1)
  redis.call('HSET', KEYS[2], id .. '.cause', ARGV[5])
  if verdict == 'retry' then
    redis.call('ZADD', KEYS[1], at + tonumber(ARGV[4]), id)
  else
    redis.call('ZREM', KEYS[1], id)
    redis.call('ZADD', KEYS[3], at, id)
    redis.call('ZADD', KEYS[4], at + tonumber(ARGV[4]), id)
    if redis.call('ZCARD', KEYS[3]) > tonumber(ARGV[9]) then
      local oldest = redis.call('ZPOPMIN', KEYS[3])[1]
      redis.call('HDEL', KEYS[2], oldest, oldest .. '.attempts', oldest .. '.cause')
      redis.call('ZREM', KEYS[4], oldest)
      redis.call('HINCRBY', KEYS[5], 'dropped', 1)
    end
  end
end
return 1
