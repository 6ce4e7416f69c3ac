#!lua
-- repeatable
-- Opens a shard: where it begins in each partition, decided once. Before any lease.
-- KEYS  1 record log
-- ARGV  1 terms, 2 detail of the record, then per partition: place, offset
-- Reply {frozen}, or {1 opened | 0 was there}; a position that is there stays
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_shard"
--- @include "_record"
if redis.call('HEXISTS', shard .. 'head', 'frozen') == 1 then
  return { 'frozen' }
end
local at, places, opened = now(), {}, redis.call('EXISTS', shard .. 'head') == 0
head.incarnation = opened and incarnation or redis.call('HGET', shard .. 'head', 'incarnation')
for i = 3, #ARGV, 2 do
  if not string.match(ARGV[i], '^%d+%.%d+$') or not string.match(ARGV[i + 1] or '', '^%d+$') then
    error('no position: ' .. ARGV[i])
  end
  if redis.call('HEXISTS', shard .. 'pos', ARGV[i]) == 0 then
    places[#places + 1] = ARGV[i]
    places[#places + 1] = ARGV[i + 1]
    local from = 'm' .. ARGV[i] .. '.' .. ARGV[i + 1]
    fact('start', from, from, 0, 'start', ARGV[2])
  end
end
record_write(at)
if opened then
  redis.call('HSET', shard .. 'head', 'incarnation', incarnation, 'opened_ms', text_of(at))
end
if #places > 0 then
  redis.call('HSET', shard .. 'pos', unpack(places))
end
return { opened and 1 or 0 }
