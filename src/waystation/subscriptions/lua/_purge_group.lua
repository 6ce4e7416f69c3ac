-- What a purge does to a group, and to a dead letter that stands alone. Include "entry", "queue",
-- "heads", "record", "selection" and "withdraw" before it.
--   purge_item(item, at, most)   settles up to `most`; how many, and how many are left
local purge_detail = cmsgpack.pack({ operation })
local function purge_drop(entry, which)
  fact('purged', string.sub(which, 1, 1) .. text_of(entry[which].h), '-', 0, 'purged', purge_detail)
  queue_drop(which, entry)
end
local function purge_group(name, at, most, failed_ms)
  local entry = entry_make(name)
  local member, parked, count = head_name(entry), entry.dead.n > 0 and entry.upto == 0, 0
  if parked then
    local failed = failed_name(entry.dead.h, name)
    failed_ms = failed_ms or tonumber(redis.call('ZSCORE', shard .. 'failed', failed) or nil)
    off('failed', failed)
    off('due', 'f' .. text_of(entry.retry.h))
  end
  -- What waits behind dead letters goes first: else it would be attempted between two steps.
  while count < most and not entry_is_clean(entry) do
    purge_drop(entry, entry.retry.n > 0 and 'retry' or 'dead')
    count = count + 1
  end
  local moved = head_name(entry) ~= member
  if moved then
    entry.tries = 0
  end
  if moved and not parked then
    withdraw(member, name)
  end
  if moved or parked then
    arm(name, entry, at)
  end
  if entry.dead.n > 0 and entry.upto == 0 then
    -- It is as old as it was, or the next step would not find it.
    put('failed', failed_name(entry.dead.h, name), failed_ms or at)
  end
  return count, entry.retry.n + entry.dead.n
end
local function purge_item(item, at, most)
  local entry = item.group and entry_read(item.group)
  if entry and (not item.name or (entry.upto == 0 and entry.dead.h == item.number)) then
    return purge_group(item.group, at, most, item.ms)
  elseif item.group or redis.call('HEXISTS', shard .. 'dead', text_of(item.number)) == 0 then
    if item.name then
      off('failed', item.name)
    end
    return 0, 0
  end
  off('failed', item.name)
  fact('purged', 'd' .. text_of(item.number), '-', 0, 'purged', purge_detail)
  alone_drop('dead', item.number)
  head.alone = head.alone - 1
  return 1, 0
end
