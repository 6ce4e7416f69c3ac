#!lua flags=allow-oom
-- repeatable
-- Begins a new incarnation at other positions. Its owner and all who have taken something are fenced.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone), 2 incarnation, then per partition: place, offset
-- Reply {frozen | missing}, or {1} done, {0} it is in that incarnation, or in a later one
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_shard"
--- @include "_entry"
--- @include "_heads"
--- @include "_heads_write"
--- @include "_record"
local refused = refusal('anyone')
if refused then
  return { refused }
end
if tonumber(ARGV[2]) <= tonumber(head.incarnation) then
  return { 0 }
end
local at = now()
head.incarnation = ARGV[2]
for i = 3, #ARGV, 2 do
  if not string.match(ARGV[i], '^%d+%.%d+$') or not string.match(ARGV[i + 1] or '', '^%d+$') then
    error('no position: ' .. ARGV[i])
  end
  local from = redis.call('HGET', shard .. 'pos', ARGV[i]) or '0'
  local place = 'm' .. ARGV[i] .. '.'
  fact('reset', place .. from, place .. ARGV[i + 1], 0, 'reset')
end
record_write(at)
-- Main positions are read anew. Heads are as they were: those that other workers had are due, since
-- what these commit is refused from here on; those of the owner are given back by the next one.
local function give_back(member)
  if string.sub(member, 1, 1) ~= 'm' then
    put('due', member, at)
  end
end
for _, member in ipairs(redis.call('ZRANGE', shard .. 'taken', 0, '+inf', 'BYSCORE')) do
  off('taken', member)
  give_back(member)
end
for _, member in ipairs(redis.call('LRANGE', shard .. 'ready', 0, -1)) do
  give_back(member)
end
redis.call('UNLINK', shard .. 'ready', shard .. 'tokens')
heads_write()
for i = 3, #ARGV, 2 do
  redis.call('HSET', shard .. 'pos', ARGV[i], ARGV[i + 1])
  redis.call('UNLINK', shard .. 'acks:' .. ARGV[i])
end
redis.call('HSET', shard .. 'head', 'incarnation', ARGV[2])
redis.call('HINCRBY', shard .. 'lease', 'epoch', 1)
redis.call('HSET', shard .. 'lease', 'until_ms', '0')
redis.call('PUBLISH', shard .. 'due', '')
return { 1 }
