#!lua flags=allow-oom
-- repeatable
-- Settles claimed items of a lane, and records their attempts.
-- A claim that has passed to another settles nothing. Where something newer came while the attempt
-- was under way, that is due now, whatever became of the attempt.
-- KEYS  1 due, 2 items, 3 failed, 4 untold, 5 gate, 6 attempts (stream)
-- ARGV  1 records to keep, 2 seconds to keep them, 3 failed items to keep, 4 lane, which is noted with
--       what fails ('' = the failed list is of this lane alone), then for each item: id, token,
--       verdict: done | retry | failed | release, ms to wait before it is due again, or in which a
--       failure is to be told, cause, record of the attempt ('' = none)
-- Reply for each item: 1 settled, 2 settled and something newer is due, 0 the claim is not ours
--- @include "store/_now"
local at, items, lane, recorded, reply = now(), KEYS[2], ARGV[4], false, {}
-- Gathered: ids that leave the lane, and fields that go; a command for all instead of some for each.
local done, fields, asked = {}, {}, {}

local function give_up(id, tell_ms)
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZADD', KEYS[3], at, id)
  redis.call('ZADD', KEYS[4], at + tell_ms, id)
  if lane ~= '' then
    redis.call('HSET', items, id .. '.lane', lane)
  end
  if redis.call('ZCARD', KEYS[3]) > tonumber(ARGV[3]) then
    local oldest = redis.call('ZPOPMIN', KEYS[3])[1]
    redis.call('HDEL', items, oldest, oldest .. '.attempts', oldest .. '.cause', oldest .. '.lane')
    redis.call('ZREM', KEYS[4], oldest)
    redis.call('HINCRBY', KEYS[5], 'dropped', 1)
  end
end

local function settle(id, verdict, wait_ms, cause, newer)
  if lane ~= '' and newer then
    redis.call('HDEL', items, id .. '.newer', id .. '.token', id .. '.attempts', id .. '.cause')
    redis.call('ZADD', KEYS[1], at, id)
    return 2
  end
  if verdict == 'done' then
    done[#done + 1] = id
    for _, field in ipairs({ id, id .. '.token', id .. '.attempts', id .. '.cause' }) do
      fields[#fields + 1] = field
    end
    return 1
  end
  redis.call('HDEL', items, id .. '.token')
  if verdict == 'release' then
    redis.call('ZADD', KEYS[1], at + wait_ms, id)
    return 1
  end
  redis.call('HINCRBY', items, id .. '.attempts', 1)
  redis.call('HSET', items, id .. '.cause', cause)
  if verdict == 'retry' then
    redis.call('ZADD', KEYS[1], at + wait_ms, id)
  else
    give_up(id, wait_ms)
  end
  return 1
end

for i = 5, #ARGV, 6 do
  asked[#asked + 1] = ARGV[i] .. '.token'
  asked[#asked + 1] = ARGV[i] .. '.newer'
end
local found = #asked > 0 and redis.call('HMGET', items, unpack(asked)) or {}
local settled = {}
for i = 5, #ARGV, 6 do
  local id, at_word = ARGV[i], (i - 5) / 3 + 1
  local outcome = 0
  if found[at_word] == ARGV[i + 1] and not settled[id] then
    if ARGV[i + 5] ~= '' then
      redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[1], '*', 'a', ARGV[i + 5])
      recorded = true
    end
    outcome = settle(id, ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4], found[at_word + 1])
    settled[id] = true
  end
  reply[#reply + 1] = outcome
end
if #done > 0 then
  redis.call('ZREM', KEYS[1], unpack(done))
  redis.call('HDEL', items, unpack(fields))
end
if recorded then
  redis.call('EXPIRE', KEYS[6], ARGV[2])
end
return reply
