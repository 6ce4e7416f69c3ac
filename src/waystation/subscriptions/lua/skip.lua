#!lua flags=allow-oom
-- repeatable
-- Settles the head of a group as skipped; the rest is due.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone), 2 operation, 3 group, 4 the head, such as r5 or d2
-- Reply {frozen | missing}, or {done}, also when this operation has done it before; {known}: the head
--       is another one; {clean}: there is none
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
--- @include "_withdraw"
local refused = refusal('anyone')
if refused then
  return { refused }
end
local operation, group = ARGV[2], ARGV[3]
if redis.call('HEXISTS', shard .. 'ops', operation .. ':settled') == 1 then
  return { 'done' }
end
local entry = entry_read(group)
if not entry then
  return { 'clean' }
end
local member, which, number = head_name(entry)
local place = string.sub(which, 1, 1) .. text_of(number)
if place ~= ARGV[4] then
  return { 'known' }
end
local at = now()
entry = entry_make(group)
withdraw(member, group)
if which == 'dead' then
  off('failed', failed_name(number, group))
  -- What was to follow is attempted after the dead letters before it, or goes on by itself.
  off('due', 'f' .. text_of(entry.retry.h))
  entry.upto = math.huge
end
queue_drop(which, entry)
entry.tries = 0
fact('skipped', place, '-', 0, 'skipped', cmsgpack.pack({ operation }))
arm(group, entry, at)
count_operation(operation, 'settled', 1)
record_write(at)
entry_write()
queue_write()
heads_write()
withdraw_write()
return { 'done' }
