-- Writes where heads wait. Include "heads" before it.
--   heads_write()   one ZADD and one ZREM per set, progress of operations, and the hint for the owner
--                   if something is due earlier than before
local function heads_write()
  for set, members in pairs(sets) do
    local key, kept, gone, first = shard .. set, {}, {}, nil
    for member, score in pairs(members) do
      if score then
        kept[#kept + 1] = text_of(score)
        kept[#kept + 1] = member
        first = math.min(first or score, score)
      else
        gone[#gone + 1] = member
      end
    end
    for from = 1, #gone, 1000 do
      redis.call('ZREM', key, unpack(gone, from, math.min(from + 999, #gone)))
    end
    local before = set == 'due' and first and redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    for from = 1, #kept, 1000 do
      local last = math.min(from + 999, #kept)
      if set == 'failed' then
        redis.call('ZADD', key, 'NX', unpack(kept, from, last))
      else
        redis.call('ZADD', key, unpack(kept, from, last))
      end
    end
    if set == 'due' and first and not (before and tonumber(before) <= first) then
      redis.call('PUBLISH', key, '')
    end
  end
  for field, by in pairs(counts) do
    redis.call('HINCRBY', shard .. 'ops', field, text_of(by))
  end
  if #alone_counted > 0 then
    redis.call('HDEL', shard .. 'alone', unpack(alone_counted))
  end
end
