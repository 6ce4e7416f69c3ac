#!lua
-- repeatable
-- Finds the first kept message at or after a time.
-- KEYS  1 log, 2 its head
-- ARGV  1 ms since the epoch
-- Reply {offset}, the end offset when there is none; {} when there is no such log
local state = redis.call('HMGET', KEYS[2], 'first', 'end')
if not state[1] then
  return {}
end
local target, low, high = tonumber(ARGV[1]), tonumber(state[1]), tonumber(state[2])
while low < high do
  local middle = math.floor((low + high) / 2)
  local id = string.format('%.0f', middle)
  local entry = redis.call('XRANGE', KEYS[1], id, id, 'COUNT', 1)[1]
  if tonumber(string.match(entry[1], '-(%d+)$')) < target then
    low = middle + 1
  else
    high = middle
  end
end
return { string.format('%.0f', low) }
