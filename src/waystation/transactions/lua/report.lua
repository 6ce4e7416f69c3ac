#!lua flags=allow-oom
-- repeatable
-- Keeps the newest progress report of a transaction; tells those who want to hear of it.
-- KEYS  1 record log
-- ARGV  1 id, 2 epoch, 3 commits, 4 report
-- Reply {outcome, version, log end}; outcomes: done, known (it is that one already), refused, unknown
--- @include "store/_now"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_owned_by"
local id, at = ARGV[1], now()
local key = state_key(id)
local log_end = redis.call('HGET', KEYS[1] .. ':head', 'end') or '0'
local found = redis.call('HMGET', key, 'head', 'progress')
if not found[1] then
  return { 'unknown', 0, log_end }
end
local head = head_read(found[1])
if not holds(head, ARGV[2], ARGV[3]) then
  return { 'refused', head.version, log_end }
end
if found[2] == ARGV[4] then
  return { 'known', head.version, log_end }
end
flag(head, 'x')
local line = head_line(head)
redis.call('HSET', key, 'head', line, 'progress', ARGV[4], 'progressAt', head.version)
reply_put(id, head, 'progress', at)
if tonumber(redis.call('ZSCORE', cell .. 'waitersZ', id) or 0) > at then
  -- Only a hint: a user of the store who may not publish must not fail after the writes above.
  redis.pcall('PUBLISH', cell .. 'progress', id)
end
return { 'done', head.version, log_end }
