#!lua flags=allow-oom
-- repeatable
-- Changes how much of a partition is kept, unless it has newer limits.
-- What is too much goes with the next trimming.
-- KEYS  1 head of the log
-- ARGV  1 most bytes or '', 2 greatest age in ms or '', 3 'refuse' | 'drop_and_count',
--       4 version of these limits, 5 most bytes while no reader has registered, or ''
-- Reply 1, or 0 when there is no such log
--- @include "_limits"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
log_limits(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
return 1
