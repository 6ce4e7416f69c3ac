#!lua
-- repeatable
-- Writes a string of the plugin's, as a version of our map has it; an older version is refused.
-- KEYS  1 string, 2 its version
-- ARGV  1 version, 2 value
-- Reply 1, or 0 where a later version was written
if tonumber(redis.call('GET', KEYS[2]) or '-1') > tonumber(ARGV[1]) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[1])
return 1
