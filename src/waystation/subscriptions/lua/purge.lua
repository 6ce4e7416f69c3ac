#!lua flags=allow-oom
-- repeatable
-- Settles dead letters as purged, with all of their groups; some at a time.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone), 2… see "selection"; a named group may be in any state
-- Reply {frozen | missing}, or {heads, messages, cursor or '' at the end, then in a dry run per sample:
--       name, ms, entry or '', record}. A step that was done before counts nothing
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
--- @include "_failed_page"
--- @include "_selection"
--- @include "_withdraw"
--- @include "_purge_group"
local refused = refusal('anyone')
if refused then
  return { refused }
end
local known = step_known()
if known then
  return { 0, 0, known }
end
local at, heads, messages, behind = now(), 0, 0, ''
-- What is purged is gone from `failed`: only a dry run needs to know where it was. So the cursor of
-- the others is the number of the step.
local items = group ~= '' and { { group = group, number = 0 } } or selected(dry and cursor or '')
for i, item in ipairs(items) do
  local last = i == #items and #items < HEADS_MAX
  local entry = item.group and entry_read(item.group)
  local count, left
  if dry then
    count = item.group and (entry and entry.dead.n + entry.retry.n or 0) or 1
    behind = (last or group ~= '') and '' or cursor_of(item)
    sampled(item, entry)
  else
    count, left = purge_item(item, at, most - messages)
    behind = (left > 0 or not last) and text_of((tonumber(cursor) or 0) + 1) or ''
  end
  heads, messages = heads + (count > 0 and not (left and left > 0) and 1 or 0), messages + count
  if not dry and messages >= most then
    break
  end
end
if not dry then
  if messages > 0 then
    count_operation(operation, 'groups', heads)
    count_operation(operation, 'marked', messages)
    count_operation(operation, 'settled', messages)
  end
  record_write(at)
  entry_write()
  queue_write()
  heads_write()
  withdraw_write()
  step_write(behind)
end
return { heads, messages, behind, unpack(sample) }
