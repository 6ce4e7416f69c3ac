-- The items of a commit, seven words each. Include "shard", "entry", "heads" and "acks" before it.
--   items_read(first)   tables: member, kind (m, r, d), place of an m, number (its offset), tries,
--                       token, group, verdict, wait, record, detail. An error for a bad one: nothing
--                       is written yet
--   items_load(items)   what has to be known of them: acknowledged offsets, who has taken them, groups
--   outcome_of(item)    nil where it is still to be settled, else `known` or `lease_lost`. Sets
--                       `item.alone` for what has no entry
local VERDICTS = {
  m = { done = true, again = true, late = true, behind = true, dead = true },
  r = { done = true, again = true, late = true, dead = true, release = true },
}
VERDICTS.d = VERDICTS.r
local taken, tokens = {}, {}
local function items_read(first)
  local items = {}
  for i = first, #ARGV, 7 do
    local member, verdict, record = ARGV[i], ARGV[i + 3], ARGV[i + 5]
    local kind = string.sub(member, 1, 1)
    local place, number, tries
    if kind == 'm' then
      place, number = string.match(member, '^m(%d+%.%d+)%.(%d+)$')
    else
      number, tries = string.match(member, '^[rd](%d+)%.(%d+)$')
    end
    local kept = kind == 'm' and verdict ~= 'done'
    if not number or not VERDICTS[kind][verdict] or not tonumber(ARGV[i + 4]) or not ARGV[i + 6]
      or (kept and record == '') or (epoch == '0' and ARGV[i + 1] == '-') then
      error('item ' .. member .. ' cannot be settled as ' .. tostring(verdict))
    end
    items[#items + 1] = {
      member = member, kind = kind, place = place, number = tonumber(number),
      tries = tonumber(tries or '0'), token = ARGV[i + 1], group = ARGV[i + 2], verdict = verdict,
      wait = tonumber(ARGV[i + 4]), record = record, detail = ARGV[i + 6]
    }
  end
  return items
end
local function items_load(items)
  local offsets, members, groups = {}, {}, {}
  for _, item in ipairs(items) do
    if item.kind == 'm' then
      offsets[item.place] = offsets[item.place] or {}
      table.insert(offsets[item.place], text_of(item.number))
    end
    if item.kind ~= 'm' or item.token ~= '-' then
      members[#members + 1] = item.member
    end
    -- What was delivered at once had a clean group, and has it still: nobody else may dirty it.
    if item.group ~= '' and not (item.kind == 'm' and item.verdict == 'done') then
      groups[#groups + 1] = item.group
    end
  end
  acks_read(offsets)
  entries_read(groups)
  if #members > 0 then
    local scores = redis.call('ZMSCORE', shard .. 'taken', unpack(members))
    local found = redis.call('HMGET', shard .. 'tokens', unpack(members))
    for i, member in ipairs(members) do
      taken[member], tokens[member] = tonumber(scores[i] or nil), found[i]
    end
  end
end
local function outcome_of(item)
  if item.kind == 'm' then
    if acked(item.place, item.number) then
      return 'known'
    end
  else
    local entry = item.group ~= '' and entry_read(item.group) or nil
    local which = item.kind == 'r' and 'retry' or 'dead'
    item.alone = not entry or entry[which].h ~= item.number
    -- A dead letter of a group can stand alone; in retry it is the head, or it was settled.
    local passed = item.kind == 'r' and item.alone and item.group ~= ''
    if passed or not taken[item.member] or sets.taken[item.member] == false then
      return 'known'
    end
  end
  local held = item.token == '-' and (taken[item.member] or -1) < 0 or tokens[item.member] == item.token
  return not held and 'lease_lost' or nil
end
