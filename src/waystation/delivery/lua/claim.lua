#!lua flags=allow-oom
-- Claims items that are due, and as many of the inbox as are wanted beside them.
-- To claim is to put an item off until the claim runs out: if we die, it comes back by itself. The
-- token says whose claim it is; a later claim has another. In the same way it takes failures that
-- nobody has been told of.
-- KEYS  1 due, 2 items, 3 untold, and of a lane with a gate: 4 gate, 5 failed, 6 inbox
-- ARGV  1 most items, 2 length of the claim in ms, 3 token, 4 ms in which a failure is to be told,
--       5 bytes after which no more is claimed, 6 items that wait for another attempt, beyond which
--       the inbox is left alone, 7 '1' to claim items first that have not been attempted
-- Reply {ms until something is due or -1, waiting, failed, dropped, number untold, untold ids...,
--        then id, item, attempts so far; id, item, ...}
--- @include "store/_now"
local at = now()
local gate, failed, inbox = KEYS[4], KEYS[5], KEYS[6]
local untold = redis.call('ZRANGE', KEYS[3], '-inf', at, 'BYSCORE', 'LIMIT', 0, 100)
local reply = { -1, 0, 0, gate and redis.call('HGET', gate, 'dropped') or '0', #untold }
for _, id in ipairs(untold) do
  redis.call('ZADD', KEYS[3], at + tonumber(ARGV[4]), id)
  reply[#reply + 1] = id
end
local most, bytes, claimed = tonumber(ARGV[1]), 0, 0
local til, times, tokens = string.format('%.0f', at + tonumber(ARGV[2])), {}, {}

local function claim(id, item, attempts)
  times[#times + 1], times[#times + 2] = til, id
  tokens[#tokens + 1], tokens[#tokens + 2] = id .. '.token', ARGV[3]
  reply[#reply + 1] = id
  reply[#reply + 1] = item
  reply[#reply + 1] = attempts
  bytes, claimed = bytes + #item, claimed + 1
end

local function claims_write()
  if #times > 0 then
    redis.call('ZADD', KEYS[1], unpack(times))
    redis.call('HSET', KEYS[2], unpack(tokens))
    times, tokens = {}, {}
  end
end

local fresh_first = ARGV[7] == '1'
local due
if not fresh_first then
  due = redis.call('ZRANGE', KEYS[1], '-inf', at, 'BYSCORE', 'LIMIT', 0, most)
elseif inbox and redis.call('EXISTS', inbox) == 1 then
  due = {}
else
  -- Look at a bounded number of items: the caller wants one, and any of them will do.
  due = redis.call('ZRANGE', KEYS[1], '-inf', at, 'BYSCORE', 'LIMIT', 0, 100)
  local fresh, failed_before = {}, {}
  for _, id in ipairs(due) do
    local attempts, newer =
      unpack(redis.call('HMGET', KEYS[2], id .. '.attempts', id .. '.newer'))
    local into = (tonumber(attempts or '0') == 0 or newer) and fresh or failed_before
    into[#into + 1] = id
  end
  due = {}
  for _, ids in ipairs({ fresh, failed_before }) do
    for _, id in ipairs(ids) do
      if #due < most then
        due[#due + 1] = id
      end
    end
  end
end
for _, id in ipairs(due) do
  local item, attempts, newer =
    unpack(redis.call('HMGET', KEYS[2], id, id .. '.attempts', id .. '.newer'))
  if not item then
    redis.call('ZREM', KEYS[1], id)
  elseif bytes <= tonumber(ARGV[5]) then
    if not gate and newer then
      -- Whoever had claimed it died; what we take is newer than what was attempted.
      redis.call('HDEL', KEYS[2], id .. '.newer', id .. '.attempts', id .. '.cause')
      attempts = '0'
    end
    claim(id, item, attempts or '0')
  end
end
claims_write()
local room = inbox and (fresh_first or redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[6]))
while room and claimed < most and bytes <= tonumber(ARGV[5]) do
  -- One by one: items may be large, and what is not claimed need not be read.
  local entry = redis.call('XRANGE', inbox, '-', '+', 'COUNT', 1)[1]
  if not entry then
    break
  end
  -- With its place: a name may be used again while an older item of that name still waits.
  local id = entry[2][1] .. '.' .. entry[1]
  redis.call('XDEL', inbox, entry[1])
  redis.call('HSET', KEYS[2], id, entry[2][2])
  claim(id, entry[2][2], '0')
  claims_write()
end
for _, key in ipairs({ KEYS[1], KEYS[3] }) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] then
    local left = math.max(0, tonumber(first[2]) - at)
    reply[1] = reply[1] < 0 and left or math.min(reply[1], left)
  end
end
local left = inbox and redis.call('XLEN', inbox) or 0
if left > 0 and room then
  reply[1] = 0
elseif inbox and left == 0 then
  redis.call('UNLINK', inbox)
end
reply[2], reply[3] = redis.call('ZCARD', KEYS[1]) + left, failed and redis.call('ZCARD', failed) or 0
return reply
