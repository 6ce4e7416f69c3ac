#!lua flags=no-writes
-- repeatable
-- Find the first stored message at or after a time, by binary search.
--
-- KEYS    1 entries of the partition, 2 its head
-- ARGV    1 time in ms since 1970
-- Reply   {offset of the message, or the end offset if all messages are older}
--         {} the partition does not exist
-- Errors  'DAMAGED_LOG <key>': a number of the head is no integer
--- @include "_integer"
local state = redis.call('HMGET', KEYS[2], 'first', 'end', 'ms')
if not state[1] then
  return {}
end
local low, high = log_integer(state[1], KEYS[2]), log_integer(state[2], KEYS[2])
local damaged = redis.call('XLEN', KEYS[1]) ~= high - low
-- Request the range of ids from the time on, so that the store does not read the body of an older
-- message, which may be large. In a log with missing entries, read the next existing message, because
-- an empty range does not show whether the message is older or missing.
local function is_older(offset)
  local id = string.format('%.0f', offset)
  if damaged then
    local found = redis.call('XRANGE', KEYS[1], id, '+', 'COUNT', 1)[1]
    return found and tonumber(string.match(found[1], '-(%d+)$')) < tonumber(ARGV[1])
  end
  return #redis.call('XRANGE', KEYS[1], id .. '-' .. ARGV[1], id, 'COUNT', 1) == 0
end
if low == high or log_integer(state[3], KEYS[2]) < tonumber(ARGV[1]) then
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
