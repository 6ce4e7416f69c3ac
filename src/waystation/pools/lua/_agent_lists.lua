-- Lists of agents, as the pool counts them. Include "heads" and "places" before it.
--   list_seen(key, entry, gone, pushed, length)   what was seen of a key's list: the last number that was
--                          popped, the last that was pushed, and how long it is. Ours that are gone leave the
--                          pool; of others as many are counted as are there. Returns what is pending
local OTHERS, OTHERS_MAX, DROPPED_MAX = '~', 500, 500
local function count_add(owner, messages, bytes)
  if messages ~= 0 then
    head.messages, head.bytes, head.changed = head.messages + messages, head.bytes + bytes, true
    load_add(owner, messages, 0)
  end
end
-- How many of others are in front, and how many of ours behind them have gone.
local function gone_from(key, owner, gone)
  local others, dropped, bytes = place_above(key, 0, 0), 0, 0
  for place = others, others + DROPPED_MAX - 1 do
    local number, _, packed = message_at(key, place)
    if not number or tonumber(number) > gone then
      break
    end
    event('popped ' .. number, { key, owner })
    dropped, bytes = dropped + 1, bytes + #packed
  end
  count_add(owner, -dropped, -bytes)
  return others, dropped
end
local function list_seen(key, entry, gone, pushed, length)
  local list, owner = pool .. 'm:' .. key, entry.owner
  local before = redis.call('LLEN', list)
  local others, dropped = gone_from(key, owner, gone)
  local ours = place_above(key, others + dropped, pushed) - others - dropped
  local wanted = math.min(math.max(length - ours, 0), OTHERS_MAX)
  if dropped == 0 and wanted == others then
    return before
  end
  local kept = {}
  for place = math.max(others - wanted, 0), others - 1 do
    kept[#kept + 1] = redis.call('LINDEX', list, place)
  end
  for _ = #kept + 1, wanted do
    kept[#kept + 1] = '0 ' .. text_of(at) .. ' ' .. OTHERS
  end
  redis.call('LTRIM', list, others + dropped, -1)
  for place = #kept, 1, -1 do
    redis.call('LPUSH', list, kept[place])
  end
  count_add(owner, wanted - others, wanted - others)
  local pending, _, ms = before - dropped + wanted - others, head_of(key)
  if wanted > others then
    redis.call('ZADD', pool .. 'keys:' .. owner, text_of(at), key)
  end
  if pending == 0 then
    redis.call('ZREM', pool .. 'ready:' .. owner, key)
  else
    -- Not since before its worker had the key: who was idle is not stale because of it.
    ready_add(owner, key, math.max(ms, tonumber(entry.since)))
  end
  return pending
end
