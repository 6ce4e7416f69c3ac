-- Where heads wait: `due`, `taken`, `failed`, as they will be; "heads_write" writes them. Include
-- "shard" and "entry" before it.
--   put(set, member, score), off(set, member)
--                         gather. In `failed` the first time stays
--   failed_name(number, group)
--                         what `failed` calls a parked head: `<number> <group>`; a dead letter that
--                         stands alone is `<number>`
--   count_operation(operation, word, by)
--                         progress of an operation, in `ops`
--   count_alone(number, word)
--                         the same for a dead letter that stands alone, if `alone` names an operation
--                         that redrives it; it is not open any more
--   arm(group, entry, at, call)
--                         puts the new head of a group where it belongs: a dead letter that is
--                         redriven, else one that is parked with what is to follow it, else one in
--                         retry. With `call` it is taken for the caller: returns member, which, number
local sets = { due = {}, taken = {}, failed = {} }
local counts = {}
local function put(set, member, score)
  sets[set][member] = score
end
local function off(set, member)
  sets[set][member] = false
end
local function failed_name(number, group)
  return text_of(number) .. ' ' .. group
end
local function count_operation(operation, word, by)
  local field = operation .. ':' .. word
  counts[field] = (counts[field] or 0) + by
end
local alone_counted = {}
local function count_alone(number, word)
  local field = text_of(number)
  local operation = redis.call('HGET', shard .. 'alone', field)
  if operation then
    count_operation(operation, word, 1)
    count_operation(operation, 'open', -1)
    alone_counted[#alone_counted + 1] = field
  end
end
local function head_name(entry)
  local which = entry.dead.n > 0 and 'dead' or 'retry'
  local number = entry[which].h
  return string.sub(which, 1, 1) .. text_of(number) .. '.' .. text_of(entry.tries), which, number
end
local function arm(group, entry, at, call)
  if entry.dead.n == 0 then
    entry.upto = 0
  end
  if entry.upto == 0 and entry.operation ~= '0' then
    count_operation(entry.operation, 'open', -1)
    entry.operation = '0'
  end
  if entry_is_clean(entry) then
    return nil
  elseif entry.dead.n > 0 and entry.upto == 0 then
    put('failed', failed_name(entry.dead.h, group), at)
    if entry.retry.n > 0 then
      put('due', 'f' .. text_of(entry.retry.h), at)
    end
    return nil
  end
  local member, which, number = head_name(entry)
  if not call then
    put('due', member, at)
    return nil
  end
  put('taken', member, -call)
  return member, which, number
end
