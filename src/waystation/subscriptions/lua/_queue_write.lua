-- Writes what lies in `retry` and `dead`. Include "queue" before it.
--   queue_write()   records, links, and the counters of the shard
local function fields_write(key, fields, text)
  local kept, gone = {}, {}
  for number, value in pairs(fields) do
    if value then
      kept[#kept + 1] = text_of(number)
      kept[#kept + 1] = text and value or text_of(value)
    else
      gone[#gone + 1] = text_of(number)
    end
  end
  for from = 1, #kept, 1000 do
    redis.call('HSET', key, unpack(kept, from, math.min(from + 999, #kept)))
  end
  for from = 1, #gone, 1000 do
    redis.call('HDEL', key, unpack(gone, from, math.min(from + 999, #gone)))
  end
end
local function queue_write()
  for which, names in pairs(COUNTERS) do
    fields_write(shard .. which, records[which], true)
    fields_write(shard .. names.links, links[which])
  end
  head_write()
end
