#!lua flags=allow-oom
-- repeatable
-- Removes all of a shard but its record log.
-- Who comes late is kept off: what is left is a head that is frozen, and a lease that nobody holds;
-- they go by themselves after a while. Also in a full store: it makes room.
-- KEYS  1 record log
-- ARGV  1 why, 2 ms until the rest goes, then partitions that may have acknowledgements
-- Reply 1 when it was removed, 0 when it was before
local shard = string.sub(KEYS[1], 1, -4)
if redis.call('HGET', shard .. 'head', 'frozen') == ARGV[1] then
  return 0
end
local gone = {}
for _, kind in ipairs({
  'head', 'pos', 'groups', 'retry', 'dead', 'rnext', 'dnext', 'due', 'taken', 'tokens', 'failed',
  'ready', 'ended', 'ops', 'alone'
}) do
  gone[#gone + 1] = shard .. kind
end
for _, place in ipairs(redis.call('HKEYS', shard .. 'pos')) do
  gone[#gone + 1] = shard .. 'acks:' .. place
end
for i = 3, #ARGV do
  gone[#gone + 1] = shard .. 'acks:' .. ARGV[i]
end
for i = 1, #gone, 500 do
  redis.call('UNLINK', unpack(gone, i, math.min(i + 499, #gone)))
end
redis.call('HSET', shard .. 'head', 'frozen', ARGV[1])
redis.call('HINCRBY', shard .. 'lease', 'epoch', 1)
redis.call('HSET', shard .. 'lease', 'until_ms', 0, 'owner', '')
redis.call('PEXPIRE', shard .. 'head', ARGV[2])
redis.call('PEXPIRE', shard .. 'lease', ARGV[2])
return 1
