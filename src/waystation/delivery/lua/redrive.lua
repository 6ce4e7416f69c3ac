#!lua
-- repeatable
-- Puts failed items back, due at once, with all their attempts before them; oldest first.
-- KEYS  1 due, 2 items, 3 failed, 4 untold, 5 gate; of a lane without one: the register in its slot
-- ARGV  1 lane, 2 most items, 3 id of the only one ('' = any), 4 whether the lane has a gate: 1, 0
-- Reply {'redriven', number of items}, or {'closed', what its gate says} and nothing was written
--- @include "store/_now"
--- @include "_wake"
local gated = ARGV[4] == '1'
local state = gated and (redis.call('HGET', KEYS[5], 'state') or '') or 'open'
if state ~= 'open' then
  return { 'closed', state }
end
local at, redriven = now(), 0
local ids = ARGV[3] ~= '' and { ARGV[3] } or redis.call('ZRANGE', KEYS[3], 0, tonumber(ARGV[2]) - 1)
for _, id in ipairs(ids) do
  if redis.call('ZREM', KEYS[3], id) == 1 then
    redis.call('ZREM', KEYS[4], id)
    redis.call('HDEL', KEYS[2], id .. '.attempts', id .. '.cause', id .. '.lane')
    redis.call('ZADD', KEYS[1], at, id)
    redriven = redriven + 1
  end
end
if redriven > 0 then
  if not gated and redis.call('ZADD', KEYS[5], 'NX', at, ARGV[1]) == 1 then
    redis.pcall('PUBLISH', KEYS[5], 'lane')
  end
  wake(ARGV[1], KEYS[1], at)
end
return { 'redriven', redriven }
