#!lua
-- repeatable
-- Opens a pool, once, or the next incarnation of one that was deleted.
-- Its counters go on: no session, epoch or number of the former one means anything.
-- KEYS  1 head
-- ARGV  1 terms, 2 incarnation, 3 whether agents serve it: 1, or 0
-- Reply 1 opened, 0 that incarnation, or a later one, was there before
--- @include "store/_now"
--- @include "_pool"
if tonumber(redis.call('HGET', KEYS[1], 'incarnation') or '0') >= tonumber(ARGV[2]) then
  return 0
end
redis.call('HSETNX', KEYS[1], 'opened_ms', text_of(at))
redis.call('HSET', KEYS[1], 'incarnation', ARGV[2])
redis.call('HDEL', KEYS[1], 'closed')
if ARGV[3] == '1' then
  redis.call('HSET', KEYS[1], 'mirrored', 1)
end
return 1
