-- What is acknowledged of partitions, `<storage number>.<partition>`: all below low, and what is in
-- `acks` above it. Include "shard" before it.
--   acks_read(wanted)      place → offsets that the call asks for or acknowledges
--   acked(place, offset)
--   ack(place, offset)     gathers
--   acks_join(place, low)  makes low the lowest, and all that joins it; the caller has it to be true
local lows, acked_at, fresh = {}, {}, {}
local function acks_read(wanted)
  local places = {}
  for place in pairs(wanted) do
    places[#places + 1] = place
  end
  if #places == 0 then
    return
  end
  for i, low in ipairs(redis.call('HMGET', shard .. 'pos', unpack(places))) do
    local place = places[i]
    lows[place], acked_at[place] = tonumber(low or '0'), {}
    local found = redis.call('ZMSCORE', shard .. 'acks:' .. place, unpack(wanted[place]))
    for j, offset in ipairs(wanted[place]) do
      acked_at[place][tonumber(offset)] = found[j] and true or nil
    end
  end
end
local function acked(place, offset)
  return offset < lows[place] or acked_at[place][offset] ~= nil
end
local function ack(place, offset)
  acked_at[place][offset] = true
  fresh[place] = fresh[place] or {}
  table.insert(fresh[place], offset)
end
local function run_length(key, low)
  -- All in the set are at or above low, each once: the first k join it exactly if the k-th is
  -- low + k - 1. So a search by halves is enough, however many wait there.
  local function joins(k)
    local found = redis.call('ZRANGE', key, k - 1, k - 1)[1]
    return found and tonumber(found) == low + k - 1
  end
  if not joins(1) then
    return 0
  end
  local good, bad = 1, 2
  while joins(bad) do
    good, bad = bad, bad * 2
  end
  while bad - good > 1 do
    local middle = math.floor((good + bad) / 2)
    if joins(middle) then
      good = middle
    else
      bad = middle
    end
  end
  return good
end
local function acks_join(place, low)
  local key = shard .. 'acks:' .. place
  local joined = run_length(key, low)
  low = low + joined
  if joined > 0 then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. text_of(low))
  end
  redis.call('HSET', shard .. 'pos', place, text_of(low))
end
