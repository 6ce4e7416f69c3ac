#!lua
-- repeatable
-- Stamps a data set with its format, once, and tells what is stamped.
-- A store without a stamp is left alone when a data set is expected in it: it lost that one.
-- KEYS  1 waystation.format
-- ARGV  1 format version, 2 data-set id for a new stamp, 3 id that is expected, or empty
-- Reply {version, data-set id, ids that it replaces} as stamped, by us or by whoever was first
--- @include "_now"
if ARGV[3] == '' and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'dataset', ARGV[2],
    'created_ms', string.format('%.0f', now()))
end
return redis.call('HMGET', KEYS[1], 'version', 'dataset', 'replaces')
