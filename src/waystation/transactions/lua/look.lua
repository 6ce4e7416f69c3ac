#!lua flags=allow-oom
-- repeatable
-- Tells when something of a cell is due.
-- KEYS  1 record log
-- ARGV  none
-- Reply {now, then the first time in sleepingZ, leaseZ, deadlineZ, sweepZ, toArchiveZ, or ''
--       for none}
--- @include "store/_now"
--- @include "_cell"
local reply = { string.format('%.0f', now()) }
for i, set in ipairs({ 'sleepingZ', 'leaseZ', 'deadlineZ', 'sweepZ', 'toArchiveZ' }) do
  reply[i + 1] = redis.call('ZRANGE', cell .. set, 0, 0, 'WITHSCORES')[2] or ''
end
return reply
