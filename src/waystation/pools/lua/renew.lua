#!lua flags=allow-oom
-- repeatable
-- Makes the leases of messages longer that a worker was given.
-- KEYS  1 head
-- ARGV  1 terms, 2 uid, 3 session, 4 length of the lease in ms, then per message: key, epoch, number, token
-- Reply {missing | unknown | evicted}, or {ok, then the keys that are lost}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_entry"
--- @include "_given"
local refused = refusal()
if refused then
  return { refused }
end
local uid, reply = ARGV[2], { 'ok' }
local worker, why = caller(uid, ARGV[3])
if not worker then
  return { why }
end
access(uid)
for i = 5, #ARGV, 4 do
  if given_state(uid, ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) == 'given' then
    redis.call('ZADD', pool .. 'taken:' .. uid, text_of(at + tonumber(ARGV[4])), ARGV[i])
  else
    reply[#reply + 1] = ARGV[i]
  end
end
return reply
