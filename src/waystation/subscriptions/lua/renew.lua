#!lua flags=allow-oom
-- repeatable
-- Makes the leases of a worker longer, by one token for each message.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone), 2 length of the lease in ms, then member, token, ...
-- Reply {refused | frozen | missing}, or {ok, then the members that are lost}
--- @include "store/_now"
--- @include "_shard"
local refused = refusal('anyone')
if refused then
  return { refused }
end
local deadline, reply = text_of(now() + tonumber(ARGV[2])), { 'ok' }
for i = 3, #ARGV, 2 do
  if redis.call('HGET', shard .. 'tokens', ARGV[i]) == ARGV[i + 1] then
    redis.call('ZADD', shard .. 'taken', 'XX', deadline, ARGV[i])
  else
    reply[#reply + 1] = ARGV[i]
  end
end
return reply
