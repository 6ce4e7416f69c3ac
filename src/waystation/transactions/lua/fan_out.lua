#!lua
-- repeatable
-- Creates children of an open Parallel, in order; those that are there are passed over.
-- Where a sibling has failed, the parent is to end, or a transaction above it was cancelled or has
-- ended, the rest counts as cancelled and is not created. In the last case the parent is asked to end:
-- its next move cancels it.
-- KEYS  1 record log
-- ARGV  1 terms, 2 id of the parent, 3 epoch, 4 commits, 5 round, 6 number of the first child, then for
--       each the words of "admit"
-- Reply {outcome, version of the parent, log end, number of the last child that was created or
--       cancelled}, or {'full' | 'missing' | 'sealed', most bytes}. Outcomes: done, refused (not held,
--       another round, children before the first are missing, or an id is taken), unknown
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "_due"
--- @include "_owned_by"
--- @include "_queue_push"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_kids"
--- @include "_tree"
--- @include "_admit"
local at, parent, first = now(), ARGV[2], tonumber(ARGV[6])
local found = redis.call('HMGET', state_key(parent), 'head', 'kids')
local head, kids = found[1] and head_read(found[1]), kids_read(found[2])
if not head then
  return { 'unknown', 0, record_write(at), 0 }
end
if not holds(head, ARGV[3], ARGV[4]) or not kids or kids.round ~= ARGV[5]
  or first > kids.created + 1 then
  return { 'refused', head.version, record_write(at), kids and kids.created or 0 }
end
local forsaken = false
if flagged(head, 'p') and not flagged(head, 'ct') then
  local _, wanted = tree_root(parent)
  forsaken = not wanted
end
local stopped = forsaken or flagged(head, 'ct') or (kids.policy == 'cancel_rest' and kids.failed ~= '-')
local n, before, results = first - 1, kids.created, {}
for from = 7, #ARGV, ADMIT_WORDS do
  n = n + 1
  if n > kids.created and n <= kids.total then
    kids.created = n
    if stopped then
      kids.done = kids.done + 1
      results[#results + 1] = 'result:' .. n
      results[#results + 1] = 'cancelled '
    else
      local item = admit_read(from)
      if redis.call('EXISTS', item.state_key) == 1 then
        -- Of another round, which must not have had this number: it is never written over.
        return { 'refused', head.version, redis.call('HGET', KEYS[1] .. ':head', 'end'), before }
      end
      item.parent = parent .. ' ' .. kids.round .. ' ' .. n
      admit(item, at)
    end
  end
end
local log_end, reason, most = record_write(at)
if not log_end then
  return { reason, most }
end
if kids.created > before then
  if forsaken then
    flag(head, 'c')
    results[#results + 1], results[#results + 2] = 'cause', FORSAKEN
  end
  redis.call(
    'HSET', state_key(parent), 'head', head_line(head), 'kids', kids_text(kids), unpack(results)
  )
  admit_write(at)
end
return { 'done', head.version, log_end, kids.created }
