#!lua flags=allow-oom
-- repeatable
-- Wakes a transaction before its time.
-- KEYS  1 record log
-- ARGV  1 terms, 2 owner or '' for any, 3 id
-- Reply {done | unknown | final | not-sleeping, its state}, or {missing, load nonce}
--- @include "now"
--- @include "log_trim"
--- @include "log_append"
--- @include "cell"
--- @include "head"
--- @include "outbox_put"
--- @include "reply_put"
--- @include "queue_push"
--- @include "record"
--- @include "counts"
--- @include "sets"
--- @include "awaken"
--- @include "miss"
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
