#!lua flags=allow-oom
-- repeatable
-- Acknowledges a range that cannot be read any more, or is not wanted.
-- KEYS  1 record log
-- ARGV  1 terms, 2 place, 3 from, 4 to, 5 kind (trimmed, passed, damaged)
-- Reply {refused | frozen | missing}, or {1} done, {0} known: low is not where the range begins
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_shard"
--- @include "_acks"
--- @include "_record"
local refused = refusal()
if refused then
  return { refused }
end
local place, from, to = ARGV[2], ARGV[3], ARGV[4]
if (redis.call('HGET', shard .. 'pos', place) or '0') ~= from or tonumber(to) <= tonumber(from) then
  return { 0 }
end
fact(ARGV[5], 'm' .. place .. '.' .. from, 'm' .. place .. '.' .. to, 0, ARGV[5])
record_write(now())
redis.call('ZREMRANGEBYSCORE', shard .. 'acks:' .. place, '-inf', '(' .. to)
acks_join(place, tonumber(to))
return { 1 }
