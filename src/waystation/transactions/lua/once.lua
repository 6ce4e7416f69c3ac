#!lua flags=allow-oom
-- repeatable
-- Keeps the result of a side effect, before its step uses it.
-- KEYS  1 record log
-- ARGV  1 id, 2 epoch, 3 commits, 4 field, 5 result
-- Reply {outcome, version, log end}; outcomes: done, known (there is a result already, which stays), refused,
--       unknown
--- @include "_cell"
--- @include "_head"
--- @include "_owned_by"
local key = state_key(ARGV[1])
local log_end = redis.call('HGET', KEYS[1] .. ':head', 'end') or '0'
local found = redis.call('HMGET', key, 'head', ARGV[4])
if not found[1] then
  return { 'unknown', 0, log_end }
end
local head = head_read(found[1])
if not holds(head, ARGV[2], ARGV[3]) then
  return { 'refused', head.version, log_end }
end
if found[2] then
  return { 'known', head.version, log_end }
end
flag(head, 'x')
redis.call('HSET', key, 'head', head_line(head), ARGV[4], ARGV[5])
return { 'done', head.version, log_end }
