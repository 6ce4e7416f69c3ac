#!lua flags=no-writes
-- repeatable
-- Read the status with the lease of ingest and the time of the store.
--
-- KEYS    1 status, 2 lease of ingest
-- ARGV    none
-- Reply   {fields, ms for which the lease is valid, ms since the last report of a node; -1: none}
-- Errors  none of its own
--- @include "store/_now"
local at = now()
local fields = redis.call('HMGET', KEYS[1], 'role', 'rows', 'failures', 'batch_ms', 'batch_rows',
  'batch_seconds', 'asked', 'served', 'ends')
local deadline = tonumber(redis.call('HGET', KEYS[2], 'until_ms') or '0')
local reported = tonumber(redis.call('HGET', KEYS[1], 'role_ms') or '0')
return { fields, math.max(0, deadline - at), reported > 0 and math.max(0, at - reported) or -1 }
