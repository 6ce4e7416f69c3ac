-- Counts of the running five seconds. Include "cell" before it, and
-- "head" for count_of.
--   count(what, by)        of no transaction in particular
--   count_of(head, what)   of a transaction: one number per node group, project and pipeline, which
--                          whoever reads sums up as he likes
--   count_name(group, owner, pipeline, what)
--                          the name of that number
--   counts_write(at)       once, at the end
local counted = {}
local function count(what, by)
  counted[what] = (counted[what] or 0) + (by or 1)
end
local function count_name(group, owner, pipeline, what)
  return 'g:::' .. group .. ':::o:::' .. owner .. ':::p:::' .. pipeline .. ':::' .. what
end
local function count_of(head, what)
  head_rest(head)
  count(count_name(head.group, head.owner, head.pipeline, what))
end
local function counts_write(at)
  local key = cell .. 'metric1H:' .. math.floor(at / 5000) * 5
  local any = false
  for what, by in pairs(counted) do
    redis.call('HINCRBY', key, what, by)
    any = true
  end
  if any then
    redis.call('EXPIRE', key, 305)
  end
  counted = {}
end
