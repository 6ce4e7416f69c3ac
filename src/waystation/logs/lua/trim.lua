#!lua flags=allow-oom
-- Removes a bounded number of the oldest messages that retention lets go, and notes in the head when
-- what is needed comes near the limit, and when it no longer is.
-- KEYS  1 log, 2 its head, 3 its holds
-- ARGV  1 most messages of this step, 2 share of the limit from which on there is a warning, in %,
--       then, where limits may have come that the log does not have yet: 3 most bytes or '',
--       4 greatest age in ms or '', 5 'refuse' | 'drop_and_count', 6 version of these limits,
--       7 most bytes while no reader has registered, or ''
-- Reply {removed, 1 if another step would find something, bytes, bytes that are needed, most bytes or
--       '', greatest age in ms or '', policy, version of these limits, dropped since ever,
--       'begins' | 'lasts' | 'ends' | '' of the warning, the reader who needs most or ''}; {} when
--       there is no such log
--- @include "store/_now"
--- @include "_trim"
--- @include "_limits"
if ARGV[3] and redis.call('EXISTS', KEYS[2]) == 1 then
  log_limits(KEYS[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7])
end
local at = now()
local done = log_trim(KEYS[1], at, tonumber(ARGV[1]), 0)
if not done then
  return {}
end
local kept = done.end_ - done.first
local needed = done.policy == 'refuse' and done.bytes or 0
if done.held and kept > 0 then
  -- By the number of messages: to weigh each of them would be to read them all.
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
