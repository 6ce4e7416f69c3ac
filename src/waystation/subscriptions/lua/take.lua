#!lua flags=allow-oom
-- Takes messages for a worker, under a lease: first those whose lease is over, then those that wait.
-- If the reply is lost, the lease runs out.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone), 2 most, 3 length of the lease in ms, 4 token
-- Reply {refused | frozen | missing}, or {ok, then per message: member, record; '' for a main
--       position, which its taker reads}
--- @include "store/_now"
--- @include "_shard"
local refused = refusal('anyone')
if refused then
  return { refused }
end
local at, reply, most, looked = now(), { 'ok' }, tonumber(ARGV[2]), 0
local over = redis.call('ZRANGE', shard .. 'taken', 0, text_of(at), 'BYSCORE', 'LIMIT', 0, most)
while #reply < 2 * most + 1 and looked < 2 * most do
  looked = looked + 1
  local member = over[looked] or redis.call('LPOP', shard .. 'ready')
  if not member then
    break
  end
  local kind, number = string.match(member, '^(%a)(%d+)')
  local which = kind == 'd' and 'dead' or 'retry'
  local record = kind == 'm' and '' or redis.call('HGET', shard .. which, number)
  if record then
    redis.call('ZADD', shard .. 'taken', text_of(at + tonumber(ARGV[3])), member)
    redis.call('HSET', shard .. 'tokens', member, ARGV[4])
    reply[#reply + 1] = member
    reply[#reply + 1] = record
  else
    redis.call('ZREM', shard .. 'taken', member)
    redis.call('HDEL', shard .. 'tokens', member)
  end
end
return reply
