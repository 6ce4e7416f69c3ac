#!lua flags=allow-oom
-- Count a batch that an ingest committed, or a failure.
-- Runs in a full store too, because ingest lets retention free memory.
--
-- KEYS    1 status
-- ARGV    1 rows of the batch, 2 its seconds, 3 failures
-- Reply   1
-- Errors  none of its own
--- @include "store/_real_now"
if ARGV[3] ~= '0' then
  redis.call('HINCRBY', KEYS[1], 'failures', ARGV[3])
  return 1
end
redis.call('HINCRBY', KEYS[1], 'rows', ARGV[1])
redis.call('HSET', KEYS[1], 'batch_ms', string.format('%.0f', real_now()), 'batch_rows', ARGV[1],
  'batch_seconds', ARGV[2])
return 1
