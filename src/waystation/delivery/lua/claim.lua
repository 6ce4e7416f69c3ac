#!lua flags=allow-oom
-- Claims items that are due. To claim is to put an item off until the claim runs out: if we die, it
-- comes back by itself. The token says whose claim it is; a later claim has another.
-- KEYS  1 due, 2 items
-- ARGV  1 most items, 2 length of the claim in ms, 3 token
-- Reply {ms until the next item is due or -1, id, item, attempts so far, id, item, ...}
--- @include "now"
local at = now()
local reply = { -1 }
local ids = redis.call('ZRANGE', KEYS[1], '-inf', at, 'BYSCORE', 'LIMIT', 0, ARGV[1])
for _, id in ipairs(ids) do
  local item = redis.call('HGET', KEYS[2], id)
  if item then
    redis.call('ZADD', KEYS[1], at + tonumber(ARGV[2]), id)
    redis.call('HSET', KEYS[2], id .. '.token', ARGV[3])
    reply[#reply + 1] = id
    reply[#reply + 1] = item
    reply[#reply + 1] = redis.call('HGET', KEYS[2], id .. '.attempts') or '0'
  else
    redis.call('ZREM', KEYS[1], id)
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first[2] then
  reply[1] = math.max(0, tonumber(first[2]) - at)
end
return reply
