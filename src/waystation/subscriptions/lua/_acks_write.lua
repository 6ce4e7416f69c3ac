-- Writes what is acknowledged. Include "acks" before it.
--   acks_write()   low over all that joins, the rest into `acks`
local function acks_write()
  for place, offsets in pairs(fresh) do
    table.sort(offsets)
    local low, i, rest = lows[place], 1, {}
    while offsets[i] == low do
      low, i = low + 1, i + 1
    end
    for j = i, #offsets do
      rest[#rest + 1] = text_of(offsets[j])
      rest[#rest + 1] = text_of(offsets[j])
    end
    if #rest > 0 then
      redis.call('ZADD', shard .. 'acks:' .. place, unpack(rest))
    end
    if i > 1 then
      acks_join(place, low)
    end
  end
end
