#!lua
-- Append a batch of messages to one partition of a log, all of them or none.
-- not repeatable: a second run appends the messages again. After a lost reply, the caller decides
-- whether to repeat the call. `topics/append_once` detects duplicates by their ids.
--
-- KEYS    1 entries of the partition, 2 its head, 3 its retention holds. The includes derive 2 and 3
--         from 1. The caller passes them because a cluster must know every key.
-- ARGV    packed messages, in order
-- Reply   {'appended', offset of the first message, time of all of them in ms}
--         {'missing', ''}           the partition does not exist
--         {'sealed', next_index}    the partition is sealed; `next_index` is the index of the storage
--                                   topic that continues it
--         {'full', max bytes}       the policy is `refuse`, and trimming did not free enough
-- Errors  'DAMAGED_LOG <key>': a number of the head is no integer, or another program has
--         written to the log. A store without free memory rejects the call before it runs
--- @include "store/_now"
--- @include "_trim"
--- @include "_append"
local offset, ms, detail = log_append(KEYS[1], now(), ARGV)
if not offset then
  return { ms, detail }
end
return { 'appended', string.format('%.0f', offset), string.format('%.0f', ms) }
