-- When something is due. Include "cell" before it.
--   due_hint(set, ms)   calls timekeepers if `ms`, the least score that was added to a sorted set of
--                       the cell, is now its first; later ones they find by themselves
--   due_in(set, at)     ms until the first of a set is due; -1 without one
local function due_hint(set, ms)
  local first = redis.call('ZRANGE', cell .. set, 0, 0, 'WITHSCORES')
  if first[2] and tonumber(first[2]) >= ms then
    -- Only a hint: a user of the store who may not publish must not fail after the writes.
    redis.pcall('PUBLISH', cell .. 'due', set)
  end
end
local function due_in(set, at)
  local first = redis.call('ZRANGE', cell .. set, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, tonumber(first[2]) - at) or -1
end
