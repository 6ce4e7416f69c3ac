#!lua
-- repeatable
-- Accepts the loss of a data set, once.
-- A store without a stamp, or with the stamp of the lost data set, gets a new id; and the stamp says
-- which ids the data set of the store replaces.
-- KEYS  1 waystation.format
-- ARGV  1 format version, 2 data-set id for a new stamp, 3 ids that are replaced, the lost one first
-- Reply {data-set id, ids that it replaces}
--- @include "_now"
local at = string.format('%.0f', now())
local found = redis.call('HGET', KEYS[1], 'dataset')
if not found then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'dataset', ARGV[2], 'created_ms', at)
elseif found == string.match(ARGV[3], '^%S+') then
  -- A node of a cluster lost its part, and the format key survived on another.
  redis.call('HSET', KEYS[1], 'dataset', ARGV[2])
end
if redis.call('HGET', KEYS[1], 'replaces') ~= ARGV[3] then
  redis.call('HSET', KEYS[1], 'replaces', ARGV[3], 'accepted_ms', at)
  redis.call('HDEL', KEYS[1], 'markers')
end
return redis.call('HMGET', KEYS[1], 'dataset', 'replaces')
