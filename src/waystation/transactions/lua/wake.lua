#!lua flags=allow-oom
-- repeatable
-- Wakes a transaction before its time.
-- KEYS  1 record log
-- ARGV  1 terms, 2 owner or '' for any, 3 id
-- Reply {done | unknown | final | not-sleeping, its state}, or {missing, load nonce}
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_queue_push"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_awaken"
--- @include "_miss"
local at, head = now(), head_of(ARGV[3])
if not head and absent(ARGV[3]) then
  return { 'missing', miss(at, { ARGV[3] })[1] }
end
if not head or (ARGV[2] ~= '' and head_rest(head).owner ~= ARGV[2]) then
  return { 'unknown', '' }
end
if not ASLEEP[head.state] then
  return { head.state == 'complete' and 'final' or 'not-sleeping', head.state }
end
awaken(ARGV[3], head, at)
sets_write()
queue_write()
counts_write(at)
record_write(at, true)
return { 'done', head.state }
