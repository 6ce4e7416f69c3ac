#!lua flags=allow-oom
-- repeatable
-- Forgets items of a lane for good, because somebody said so; oldest first.
-- KEYS  1 due, 2 items, 3 failed, 4 untold, 5 inbox, where there is one
-- ARGV  1 which: failed | waiting, 2 most items, 3 id of the only one ('' = any)
-- Reply number of items
local from = ARGV[1] == 'failed' and KEYS[3] or KEYS[1]
local ids = ARGV[3] ~= '' and { ARGV[3] } or redis.call('ZRANGE', from, 0, tonumber(ARGV[2]) - 1)
local discarded = 0
for _, id in ipairs(ids) do
  if redis.call('ZREM', from, id) == 1 then
    redis.call('ZREM', KEYS[4], id)
    redis.call(
      'HDEL', KEYS[2], id, id .. '.attempts', id .. '.cause', id .. '.token', id .. '.newer',
      id .. '.lane'
    )
    discarded = discarded + 1
  end
end
if ARGV[1] == 'waiting' and KEYS[5] then
  -- What no one has tried yet: the id says where it is.
  local name, place = string.match(ARGV[3], '^(.*)%.(%d+%-%d+)$')
  local only = ARGV[3] ~= ''
  local left = math.min(tonumber(ARGV[2]) - discarded, only and 1 or math.huge)
  local entries = {}
  if left > 0 and (place or not only) then
    entries = redis.call('XRANGE', KEYS[5], place or '-', place or '+', 'COUNT', left)
  end
  for _, entry in ipairs(entries) do
    if not only or entry[2][1] == name then
      discarded = discarded + redis.call('XDEL', KEYS[5], entry[1])
    end
  end
  if redis.call('XLEN', KEYS[5]) == 0 then
    redis.call('UNLINK', KEYS[5])
  end
end
return discarded
