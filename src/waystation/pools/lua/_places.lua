-- Places in the list of a key, from 0. Include "entry" before it.
--   message_at(key, place)             number, enqueued ms, envelope; nil behind the last
--   place_above(key, from, number)     the first place, from one on, with a higher number
local function message_at(key, place)
  return message_parse(redis.call('LINDEX', pool .. 'm:' .. key, place))
end
local function place_above(key, from, number)
  local low, high = from, redis.call('LLEN', pool .. 'm:' .. key)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if tonumber((message_at(key, middle))) > number then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end
