#!lua flags=no-writes
-- repeatable
-- Find messages of a recipient key by their numbers.
-- KEYS  1 head
-- ARGV  1 recipient key, then numbers
-- Reply {withheld, then per message: pending | dead | gone}. Calls that recorded nothing, because of
--       `record` none, can have settled messages up to number `withheld`
local pool = string.sub(KEYS[1], 1, -5)
local list = pool .. 'm:' .. ARGV[1]
local function number_at(place)
  return tonumber(string.match(redis.call('LINDEX', list, place), '^%d+'))
end
-- Return true if the list has a number. Its numbers ascend.
local function is_pending(number)
  local low, high = 0, redis.call('LLEN', list)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = number_at(middle)
    if found == number then
      return true
    elseif found > number then
      high = middle
    else
      low = middle + 1
    end
  end
  return false
end
local reply = { redis.call('HGET', KEYS[1], 'withheld') or '0' }
for i = 2, #ARGV do
  local place = 'gone'
  if is_pending(tonumber(ARGV[i])) then
    place = 'pending'
  elseif redis.call('HEXISTS', pool .. 'dead', ARGV[i]) == 1 then
    place = 'dead'
  end
  reply[#reply + 1] = place
end
return reply
