#!lua flags=allow-oom
-- repeatable
-- Begins an ownership: what the former owner had taken is due at once; some at a time.
-- KEYS  1 record log
-- ARGV  1 terms, 2 most to give back
-- Reply {refused | frozen | missing}, or {left to do, now, log end, incarnation, retry bytes, dead
--       bytes, then per partition: place, low}
--- @include "store/_now"
--- @include "_shard"
local refused = refusal()
if refused then
  return { refused }
end
local at = now()
local key = shard .. 'taken'
local members = redis.call('ZRANGE', key, '-inf', '(0', 'BYSCORE', 'LIMIT', 0, ARGV[2])
local words = {}
for _, member in ipairs(members) do
  words[#words + 1] = text_of(at)
  words[#words + 1] = member
end
if #members > 0 then
  redis.call('ZADD', shard .. 'due', unpack(words))
  redis.call('ZREM', key, unpack(members))
end
local reply = {
  redis.call('ZCOUNT', key, '-inf', '(0'), text_of(at),
  redis.call('HGET', KEYS[1] .. ':head', 'end') or '0',
  head.incarnation, text_of(head.retry_bytes), text_of(head.dead_bytes)
}
for _, word in ipairs(redis.call('HGETALL', shard .. 'pos')) do
  reply[#reply + 1] = word
end
return reply
