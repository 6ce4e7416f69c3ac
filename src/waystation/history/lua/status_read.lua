#!lua flags=no-writes
-- repeatable
-- Read the status of history, the lease of ingest, and the ages of the reports.
-- All times are real, so that the time machine changes none of them.
--
-- KEYS    1 status, 2 lease of ingest
-- ARGV    none
-- Reply   {fields, ms for which the lease is valid, ms since the last report of a node, ms since the
--         log ends were read up to which the lake is complete}; -1: none
-- Errors  none of its own
--- @include "store/_real_now"
local at = real_now()
local fields = redis.call('HMGET', KEYS[1], 'role', 'rows', 'failures', 'batch_ms', 'batch_rows',
  'batch_seconds', 'asked', 'served', 'ends', 'lake')
local deadline = tonumber(redis.call('HGET', KEYS[2], 'until_ms') or '0')
local function age(field)
  local ms = tonumber(redis.call('HGET', KEYS[1], field) or '0')
  return ms > 0 and math.max(0, at - ms) or -1
end
return { fields, math.max(0, deadline - at), age('role_ms'), age('ends_ms') }
