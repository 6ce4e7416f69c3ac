#!lua flags=allow-oom
-- repeatable
-- Deletes some keys of a closed pool with their messages; with the last one all but the counters.
-- Ids of messages go by themselves: none of them counts in what has the name next (`former`).
-- KEYS  1 head
-- ARGV  1 incarnation, 2 most
-- Reply keys left; 0: it is gone, or a later incarnation has begun
local pool = string.sub(KEYS[1], 1, -5)
local found = redis.call('HMGET', KEYS[1], 'incarnation', 'closed', 'number')
if found[1] ~= ARGV[1] or not found[2] then
  return 0
end
local room, workers = tonumber(ARGV[2]), redis.call('HKEYS', pool .. 'workers')
workers[#workers + 1] = '-'
for _, uid in ipairs(workers) do
  local keys = room > 0 and redis.call('ZRANGE', pool .. 'keys:' .. uid, 0, room - 1) or {}
  for _, key in ipairs(keys) do
    redis.call('UNLINK', pool .. 'm:' .. key)
  end
  if #keys > 0 then
    redis.call('HDEL', pool .. 'keys', unpack(keys))
    redis.call('ZREM', pool .. 'keys:' .. uid, unpack(keys))
  end
  room = room - #keys
  redis.call('UNLINK', pool .. 'ready:' .. uid, pool .. 'taken:' .. uid)
end
local left = redis.call('HLEN', pool .. 'keys')
if left == 0 then
  for _, kind in ipairs({ 'workers', 'seen', 'live', 'ring', 'load', 'dead', 'failed', 'accesses' }) do
    redis.call('UNLINK', pool .. kind)
  end
  redis.call('HDEL', KEYS[1], 'opened_ms', 'closed', 'iterator', 'messages', 'bytes', 'dropped',
    'mirrored', 'observed_ms')
  redis.call('HSET', KEYS[1], 'former', found[3] or '0')
end
return left
