#!lua
-- repeatable
-- Record that the operator accepts the loss of a data set.
-- A store without a stamp, or with the stamp of the lost data set, gets a new data-set id. The field
-- `replaces` of the stamp lists the lost ids, so that databases that still name one accept the new id.
-- A second run finds the new id and changes nothing.
--
-- KEYS    1 waystation.format
-- ARGV    1 format version, 2 data-set id for a new stamp, 3 replaced ids separated by spaces,
--         the newest first
-- Reply   {data-set id, replaced ids}
-- Errors  none of its own
--- @include "_now"
local at = string.format('%.0f', now())
local found = redis.call('HGET', KEYS[1], 'dataset')
if not found then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'dataset', ARGV[2], 'created_ms', at)
elseif found == string.match(ARGV[3], '^%S+') then
  -- One node of a cluster lost its data, and the format key is on another node.
  redis.call('HSET', KEYS[1], 'dataset', ARGV[2])
end
if redis.call('HGET', KEYS[1], 'replaces') ~= ARGV[3] then
  redis.call('HSET', KEYS[1], 'replaces', ARGV[3], 'accepted_ms', at)
  redis.call('HDEL', KEYS[1], 'markers')
end
return redis.call('HMGET', KEYS[1], 'dataset', 'replaces')
