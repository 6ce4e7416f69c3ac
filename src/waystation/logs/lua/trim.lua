#!lua flags=allow-oom
-- Delete a bounded number of the oldest messages, as far as retention permits. Update the warning state
-- of the partition: the warning begins when the messages that readers need come near the byte limit.
-- not repeatable: a second run deletes further messages and reports other counts.
--
-- KEYS    1 entries of the partition, 2 its head, 3 its retention holds
-- ARGV    1 max messages to delete, 2 percentage of max bytes at which the warning begins,
--         3 '1' to delete also messages within the limits that all readers have passed, or '';
--         optionally new limits to apply first: 4 max bytes or '', 5 max age in ms or '',
--         6 'refuse' | 'drop_and_count', 7 version of these limits (0: unversioned),
--         8 max bytes while no reader has a hold, or ''
-- Reply   {messages deleted, 1 if another call would delete more, bytes stored, bytes that readers
--         need, max bytes or '', max age in ms or '', policy, version of the limits, messages dropped
--         so far, warning ('begins' | 'lasts' | 'ends' | ''), slowest reader or ''}
--         {} the partition does not exist
-- Errors  'DAMAGED_LOG <key>': a number of the head is no integer
--- @include "store/_now"
--- @include "_trim"
--- @include "_limits"
if ARGV[4] and redis.call('EXISTS', KEYS[2]) == 1 then
  log_limits(KEYS[2], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8])
end
local at = now()
local done = log_trim(KEYS[1], at, tonumber(ARGV[1]), 0, ARGV[3] == '1')
if not done then
  return {}
end
local kept = done.end_ - done.first
local needed = done.policy == 'refuse' and done.bytes or 0
if done.held and kept > 0 then
  -- Estimate the bytes from the number of messages, because exact bytes would need a read of all.
  needed = done.bytes * math.max(0, done.end_ - math.max(done.held, done.first)) / kept
end
local near = done.max_bytes and needed >= done.max_bytes * tonumber(ARGV[2]) / 100
local was = redis.call('HEXISTS', KEYS[2], 'warned_ms') == 1
local warning = near and (was and 'lasts' or 'begins') or (was and 'ends' or '')
if warning == 'begins' then
  redis.call('HSET', KEYS[2], 'warned_ms', string.format('%.0f', at))
elseif warning == 'ends' then
  redis.call('HDEL', KEYS[2], 'warned_ms')
end
local function whole(number)
  return number and string.format('%.0f', number) or ''
end
return {
  done.removed, done.more and 1 or 0, whole(done.bytes), whole(needed),
  whole(done.max_bytes), whole(done.max_age_ms), done.policy, whole(done.version),
  whole(done.dropped), warning, done.slowest or ''
}
