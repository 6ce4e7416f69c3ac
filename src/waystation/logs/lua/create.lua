#!lua
-- repeatable
-- Creates one partition of a log, unless it is there.
-- KEYS  1 head of the log
-- ARGV  1 most bytes or '', 2 greatest age in ms or '', 3 'refuse' | 'drop_and_count',
--       4 version of these limits, 5 most bytes while no reader has registered, or ''
-- Reply 1 when it was created, else 0
--- @include "_limits"
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'first', 0, 'end', 0, 'ms', 0, 'bytes', 0, 'dropped', 0)
log_limits(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
return 1
