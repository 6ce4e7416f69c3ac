#!lua
-- repeatable
-- Creates one partition of a log, unless it is there.
-- KEYS  1 head of the log
-- ARGV  1 most bytes or '', 2 greatest age in ms or '', 3 'refuse' | 'drop_and_count'
-- Reply 1 when it was created, else 0
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'first', 0, 'end', 0, 'ms', 0, 'bytes', 0, 'dropped', 0, 'policy', ARGV[3])
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], 'max_bytes', ARGV[1])
  if ARGV[3] == 'refuse' then
    redis.call('HSET', KEYS[1], 'refuse_over', ARGV[1])
  end
end
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], 'max_age_ms', ARGV[2])
end
return 1
