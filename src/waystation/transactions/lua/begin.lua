#!lua flags=allow-oom
-- repeatable
-- Says that a suspect is about to run: if its process dies now, that counts.
-- KEYS  1 record log
-- ARGV  1 id, 2 epoch, 3 commits
-- Reply {outcome, version, log end}; outcomes: done, refused, unknown
--- @include "_cell"
--- @include "_head"
--- @include "_owned_by"
local log_end = redis.call('HGET', KEYS[1] .. ':head', 'end') or '0'
local head = head_of(ARGV[1])
if not head then
  return { 'unknown', 0, log_end }
end
if not holds(head, ARGV[2], ARGV[3]) then
  return { 'refused', head.version, log_end }
end
if not flagged(head, 'b') then
  flag(head, 'b')
  redis.call('HSET', state_key(ARGV[1]), 'head', head_line(head))
end
return { 'done', head.version, log_end }
