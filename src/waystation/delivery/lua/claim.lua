#!lua flags=allow-oom
-- Claims items that are due.
-- To claim is to put an item off until the claim runs out: if we die, it comes back by itself. The
-- token says whose claim it is; a later claim has another. In the same way it takes failures that
-- nobody has been told of.
-- KEYS  1 due, 2 items, 3 failed, 4 untold, 5 gate
-- ARGV  1 most items, 2 length of the claim in ms, 3 token, 4 ms in which a failure is to be told,
--       5 bytes after which no more is claimed
-- Reply {ms until something is due or -1, waiting, failed, dropped, number untold, untold ids...,
--        then id, item, attempts so far; id, item, ...}
--- @include "now"
local at = now()
local untold = redis.call('ZRANGE', KEYS[4], '-inf', at, 'BYSCORE', 'LIMIT', 0, 100)
local reply = { -1, 0, 0, redis.call('HGET', KEYS[5], 'dropped') or '0', #untold }
for _, id in ipairs(untold) do
  redis.call('ZADD', KEYS[4], at + tonumber(ARGV[4]), id)
  reply[#reply + 1] = id
end
local bytes = 0
local ids = redis.call('ZRANGE', KEYS[1], '-inf', at, 'BYSCORE', 'LIMIT', 0, ARGV[1])
for _, id in ipairs(ids) do
  local item = redis.call('HGET', KEYS[2], id)
  if not item then
    redis.call('ZREM', KEYS[1], id)
  elseif bytes <= tonumber(ARGV[5]) then
    bytes = bytes + #item
    redis.call('ZADD', KEYS[1], at + tonumber(ARGV[2]), id)
    redis.call('HSET', KEYS[2], id .. '.token', ARGV[3])
    reply[#reply + 1] = id
    reply[#reply + 1] = item
    reply[#reply + 1] = redis.call('HGET', KEYS[2], id .. '.attempts') or '0'
  end
end
for _, key in ipairs({ KEYS[1], KEYS[4] }) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] then
    local left = math.max(0, tonumber(first[2]) - at)
    reply[1] = reply[1] < 0 and left or math.min(reply[1], left)
  end
end
reply[2], reply[3] = redis.call('ZCARD', KEYS[1]), redis.call('ZCARD', KEYS[3])
return reply
