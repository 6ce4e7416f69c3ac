#!lua
-- repeatable
-- Puts failed items back, due at once, with all their attempts before them; oldest first.
-- KEYS  1 due, 2 items, 3 failed
-- ARGV  1 most items, 2 lane
-- Reply number of items put back
--- @include "now"
local at = now()
local ids = redis.call('ZRANGE', KEYS[3], 0, tonumber(ARGV[1]) - 1)
for _, id in ipairs(ids) do
  redis.call('ZREM', KEYS[3], id)
  redis.call('HDEL', KEYS[2], id .. '.attempts', id .. '.cause')
  redis.call('ZADD', KEYS[1], at, id)
end
if #ids > 0 then
  redis.call('PUBLISH', ARGV[2] .. '.wake', 'due')
end
return #ids
