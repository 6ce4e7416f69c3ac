#!lua flags=allow-oom
-- repeatable
-- Makes dead letters due: the heads of parked groups, and those that stand alone.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone), 2… see "selection"; a number of a group: redriven up to that one
-- Reply {frozen | missing}, or {heads, messages, cursor or '' at the end, then in a dry run per sample:
--       name, ms, entry or '', record}. A step that was done before counts nothing
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_shard"
--- @include "_entry"
--- @include "_entry_write"
--- @include "_queue"
--- @include "_heads"
--- @include "_heads_write"
--- @include "_record"
--- @include "_failed_page"
--- @include "_selection"
local refused = refusal('anyone')
if refused then
  return { refused }
end
local ranged = group == '' and not upto
local known = ranged and step_known()
if known then
  return { 0, 0, known }
end
local function length(entry)
  if not upto then
    return entry.dead.n
  end
  local count, number = 0, entry.dead.h
  while number and number <= upto and count < 1000 do
    count, number = count + 1, tonumber(redis.call('HGET', shard .. 'dnext', text_of(number)) or nil)
  end
  return count
end
local at, alone, detail = now(), {}, cmsgpack.pack({ operation })
local function mark(item, entry)
  local place = 'd' .. text_of(item.number)
  off('failed', item.name)
  count_operation(operation, 'open', 1)
  fact('redriven', place, place, 0, 'redriven', detail)
  if not entry then
    put('due', place .. '.0', at)
    alone[#alone + 1] = text_of(item.number)
    alone[#alone + 1] = operation
    return
  end
  entry = entry_make(item.group)
  -- What was to follow waits until these are settled.
  off('due', 'f' .. text_of(entry.retry.h))
  entry.tries, entry.upto, entry.operation = 0, upto or math.huge, operation
  arm(item.group, entry, at)
end

-- Asked again for one group or message: what it did is told again.
local mine = not dry and not ranged and (group ~= '' and entry_read(group) or nil)
if mine and mine.operation == operation then
  return { 1, length(mine), '' }
elseif not dry and not ranged and group == '' then
  if redis.call('HGET', shard .. 'alone', text_of(upto)) == operation then
    return { 1, 1, '' }
  end
end
local items, heads, messages, behind = selected(cursor), 0, 0, ''
for i, item in ipairs(items) do
  local entry = item.group and entry_read(item.group)
  local fits = not item.group or (entry and entry.upto == 0 and entry.dead.h == item.number)
  local count = fits and (entry and length(entry) or 1) or 0
  if count > 0 then
    heads, messages = heads + 1, messages + count
    if not dry then
      mark(item, entry)
    else
      sampled(item, entry)
    end
  end
  behind = (i < #items or #items == HEADS_MAX) and cursor_of(item) or ''
  if not dry and messages >= most then
    break
  end
end
if heads > 0 and not dry then
  count_operation(operation, 'groups', heads)
  count_operation(operation, 'marked', messages)
  record_write(at)
  entry_write()
  heads_write()
  if #alone > 0 then
    redis.call('HSET', shard .. 'alone', unpack(alone))
  end
end
if ranged and not dry then
  step_write(behind)
end
return { heads, messages, ranged and behind or '', unpack(sample) }
