#!lua flags=no-writes
-- repeatable
-- Finds the first kept message at or after a time.
-- KEYS  1 log, 2 its head
-- ARGV  1 ms since the epoch
-- Reply {offset}, the end offset when there is none; {} when there is no such log
local state = redis.call('HMGET', KEYS[2], 'first', 'end', 'ms')
if not state[1] then
  return {}
end
local low, high = tonumber(state[1]), tonumber(state[2])
local damaged = redis.call('XLEN', KEYS[1]) ~= high - low
-- A message that is older than the time is not in the range, so it is not read: it may be large.
-- In a log with holes, the first message from the offset on is read instead, because a missing one
-- would look like an older one.
local function is_older(offset)
  local id = string.format('%.0f', offset)
  if damaged then
    local found = redis.call('XRANGE', KEYS[1], id, '+', 'COUNT', 1)[1]
    return found and tonumber(string.match(found[1], '-(%d+)$')) < tonumber(ARGV[1])
  end
  return #redis.call('XRANGE', KEYS[1], id .. '-' .. ARGV[1], id, 'COUNT', 1) == 0
end
if low == high or tonumber(state[3]) < tonumber(ARGV[1]) then
  low = high
elseif not is_older(low) then
  high = low
end
while low < high do
  local middle = math.floor((low + high) / 2)
  if is_older(middle) then
    low = middle + 1
  else
    high = middle
  end
end
return { string.format('%.0f', low) }
