#!lua flags=allow-oom
-- repeatable
-- Moves what is left of a group behind its first dead letter; some at a time.
-- KEYS  1 record log
-- ARGV  1 terms, 2 group, 3 most
-- Reply {refused | frozen | missing}, or {moved, left}
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_shard"
--- @include "_entry"
--- @include "_entry_write"
--- @include "_queue"
--- @include "_queue_write"
--- @include "_heads"
--- @include "_heads_write"
--- @include "_record"
--- @include "_follow_on"
local refused = refusal()
if refused then
  return { refused }
end
local at, group = now(), ARGV[2]
local entry = entry_read(group)
-- A group without dead letters, or one that is redriven, has nothing to follow.
if not entry or entry.dead.n == 0 or entry.upto > 0 or entry.retry.n == 0 then
  return { 0, 0 }
end
entry = entry_make(group)
local moved = follow_on(entry, tonumber(ARGV[3]))
arm(group, entry, at)
record_write(at)
entry_write()
queue_write()
heads_write()
return { moved, entry.retry.n }
