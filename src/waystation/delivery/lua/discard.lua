#!lua flags=allow-oom
-- repeatable
-- Forgets items of a lane for good, because somebody said so; oldest first.
-- KEYS  1 due, 2 items, 3 failed, 4 untold
-- ARGV  1 which: failed | waiting, 2 most items, 3 id of the only one ('' = any)
-- Reply number of items
local from = ARGV[1] == 'failed' and KEYS[3] or KEYS[1]
local ids = ARGV[3] ~= '' and { ARGV[3] } or redis.call('ZRANGE', from, 0, tonumber(ARGV[2]) - 1)
local discarded = 0
for _, id in ipairs(ids) do
  if redis.call('ZREM', from, id) == 1 then
    redis.call('ZREM', KEYS[4], id)
    redis.call('HDEL', KEYS[2], id, id .. '.attempts', id .. '.cause', id .. '.token')
    discarded = discarded + 1
  end
end
return discarded
