#!lua
-- repeatable
-- Writes fields of a hash of the plugin's, as a version of our map has them; an older version is refused.
-- KEYS  1 hash, 2 its version
-- ARGV  1 version, 2 how many fields to delete, these, then fields and values
-- Reply 1, or 0 where a later version was written
if tonumber(redis.call('GET', KEYS[2]) or '-1') > tonumber(ARGV[1]) then
  return 0
end
local first = 3 + tonumber(ARGV[2])
if first > 3 then
  redis.call('HDEL', KEYS[1], unpack(ARGV, 3, first - 1))
end
if #ARGV >= first then
  redis.call('HSET', KEYS[1], unpack(ARGV, first))
end
redis.call('SET', KEYS[2], ARGV[1])
return 1
