#!lua
-- repeatable
-- Puts one item into a lane under an id of the caller's, to be sent after a while.
-- KEYS  1 due, 2 items, 3 gate
-- ARGV  1 lane, 2 id, 3 item, 4 ms to wait before the first attempt, 5 most items that wait
-- Reply {'added' | 'known' | 'full'}, or {'closed', what its gate says} and nothing was written
--- @include "store/_now"
--- @include "_wake"
local state = redis.call('HGET', KEYS[3], 'state') or ''
if state ~= 'open' then
  return { 'closed', state }
end
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 then
  return { 'known' }
end
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[5]) then
  redis.call('HINCRBY', KEYS[3], 'dropped', 1)
  return { 'full' }
end
local at = now() + tonumber(ARGV[4])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[2])
wake(ARGV[1], KEYS[1], at)
return { 'added' }
