#!lua
-- repeatable
-- Stamp an empty store with format version and data-set id, and return the stamp.
-- The caller passes the id that it expects. If the store has no stamp then, it lost that data set,
-- and the script writes nothing.
-- A second run finds the stamp and returns it.
--
-- KEYS    1 waystation.format
-- ARGV    1 format version, 2 data-set id for a new stamp, 3 expected data-set id, or empty
-- Reply   {version, data-set id, replaced ids} of the stamp, whichever process wrote it;
--         missing fields are nil
-- Errors  none of its own
--- @include "_now"
if ARGV[3] == '' and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'dataset', ARGV[2],
    'created_ms', string.format('%.0f', now()))
end
return redis.call('HMGET', KEYS[1], 'version', 'dataset', 'replaces')
