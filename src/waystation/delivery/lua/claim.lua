#!lua flags=allow-oom
-- Claims items that are due, and as many of the inbox as are wanted beside them.
-- To claim is to put an item off until the claim runs out: if we die, it comes back by itself. The
-- token says whose claim it is; a later claim has another. In the same way it takes failures that
-- nobody has been told of.
-- KEYS  1 due, 2 items, 3 failed, 4 untold, 5 gate, 6 inbox
-- ARGV  1 most items, 2 length of the claim in ms, 3 token, 4 ms in which a failure is to be told,
--       5 bytes after which no more is claimed, 6 items that wait for another attempt, beyond which
--       the inbox is left alone
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
local most, bytes, claimed = tonumber(ARGV[1]), 0, 0

local function claim(id, item, attempts)
  redis.call('ZADD', KEYS[1], at + tonumber(ARGV[2]), id)
  redis.call('HSET', KEYS[2], id .. '.token', ARGV[3])
  reply[#reply + 1] = id
  reply[#reply + 1] = item
  reply[#reply + 1] = attempts
  bytes, claimed = bytes + #item, claimed + 1
end

for _, id in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', at, 'BYSCORE', 'LIMIT', 0, most)) do
  local item = redis.call('HGET', KEYS[2], id)
  if not item then
    redis.call('ZREM', KEYS[1], id)
  elseif bytes <= tonumber(ARGV[5]) then
    claim(id, item, redis.call('HGET', KEYS[2], id .. '.attempts') or '0')
  end
end
local room = redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[6])
while room and claimed < most and bytes <= tonumber(ARGV[5]) do
  -- One by one: items may be large, and what is not claimed need not be read.
  local entry = redis.call('XRANGE', KEYS[6], '-', '+', 'COUNT', 1)[1]
  if not entry then
    break
  end
  -- With its place: a name may be used again while an older item of that name still waits.
  local id = entry[2][1] .. '.' .. entry[1]
  redis.call('XDEL', KEYS[6], entry[1])
  redis.call('HSET', KEYS[2], id, entry[2][2])
  claim(id, entry[2][2], '0')
end
for _, key in ipairs({ KEYS[1], KEYS[4] }) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] then
    local left = math.max(0, tonumber(first[2]) - at)
    reply[1] = reply[1] < 0 and left or math.min(reply[1], left)
  end
end
local inbox = redis.call('XLEN', KEYS[6])
if inbox > 0 and room then
  reply[1] = 0
elseif inbox == 0 then
  redis.call('UNLINK', KEYS[6])
end
reply[2], reply[3] = redis.call('ZCARD', KEYS[1]) + inbox, redis.call('ZCARD', KEYS[3])
return reply
