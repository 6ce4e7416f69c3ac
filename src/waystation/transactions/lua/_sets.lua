-- Changes of the cell's sorted sets, gathered over a call: one command per set instead of one per id.
-- Include before it: cell.
--   off(set, id)          takes an id off a set
--   put(set, score, id)   puts it on, or moves it
--   sets_write()          at the end of the script: first what goes, then what comes
local sets_off, sets_on = {}, {}
local function off(set, id)
  local ids = sets_off[set] or {}
  sets_off[set] = ids
  ids[#ids + 1] = id
end
local function put(set, score, id)
  local scores = sets_on[set] or {}
  sets_on[set] = scores
  scores[#scores + 1] = score
  scores[#scores + 1] = id
end
local function sets_write()
  for set, ids in pairs(sets_off) do
    redis.call('ZREM', cell .. set, unpack(ids))
  end
  for set, scores in pairs(sets_on) do
    redis.call('ZADD', cell .. set, unpack(scores))
  end
  sets_off, sets_on = {}, {}
end
