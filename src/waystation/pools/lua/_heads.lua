-- Heads of keys: the one message of each that can be given out. Include "load" and "entry" before it.
--   ready_add(uid, key, ms)         its head can be taken from then on; wakes the worker (ready_hint)
--   finish()                        the end of a script: writes what was gathered, and hints
--   head_take(key, entry, token, lease_ms)
--                                   gives it out
--   head_drop(key, entry, cause)    takes a head off its list that is taken; with a cause it is a dead
--                                   letter. Puts the next nowhere: returns its number, enqueued ms, envelope
--   head_free(key, entry, crashed)  what was taken can be taken again, at its place in the order; a
--                                   crash is counted, and the last one makes a dead letter of it
local hints = {}
local function ready_hint(uid)
  -- Where something could be taken before, its worker knows it: it looks when it has room.
  if uid ~= '-' and redis.call('ZCOUNT', pool .. 'ready:' .. uid, '-inf', text_of(at)) == 0 then
    hints[uid] = true
  end
end
local function ready_add(uid, key, ms)
  ready_hint(uid)
  redis.call('ZADD', pool .. 'ready:' .. uid, text_of(ms), key)
end
local function finish()
  head_write()
  load_write()
  entries_write()
  events_write()
  for uid in pairs(hints) do
    -- A user of the store who may not publish must not fail after the writes above.
    redis.pcall('PUBLISH', pool .. 'ready:' .. uid, 'ready')
  end
end
local function head_take(key, entry, token, lease_ms)
  redis.call('ZREM', pool .. 'ready:' .. entry.owner, key)
  redis.call('ZADD', pool .. 'taken:' .. entry.owner, text_of(at + lease_ms), key)
  entry.token = token
  entry_write(key)
  if events then
    event('taken ' .. (head_of(key)) .. ' ' .. entry.epoch .. ' ' .. entry.tries, { key, entry.owner })
  end
end
local function bury(key, entry, number, ms, packed, cause)
  local facts = { text_of(ms), entry.tries, entry.crashes, #key, #cause }
  local letter = table.concat(facts, ' ') .. ' ' .. key .. cause .. packed
  redis.call('HSET', pool .. 'dead', number, letter)
  redis.call('ZADD', pool .. 'failed', text_of(at), number)
  event('dead ' .. number .. ' ' .. entry.epoch .. ' ' .. entry.tries, { key, entry.owner, cause })
  if redis.call('ZCARD', pool .. 'failed') > dead_max then
    local oldest = redis.call('ZPOPMIN', pool .. 'failed')[1]
    redis.call('HDEL', pool .. 'dead', oldest)
    event('dropped ' .. oldest, {})
    head.dropped = head.dropped + 1
  end
end
local function head_drop(key, entry, cause)
  local number, ms, packed = message_parse(redis.call('LPOP', pool .. 'm:' .. key))
  redis.call('ZREM', pool .. 'taken:' .. entry.owner, key)
  if cause then
    bury(key, entry, number, ms, packed, cause)
  end
  head.messages, head.bytes, head.changed = head.messages - 1, head.bytes - #packed, true
  load_add(entry.owner, -1, 0)
  entry.token, entry.tries, entry.crashes = '-', 0, 0
  entry_write(key)
  return head_of(key)
end
local function head_free(key, entry, crashed)
  if entry.token == '-' then
    return
  end
  if crashed then
    entry.tries, entry.crashes = entry.tries + 1, entry.crashes + 1
  end
  local number, ms = head_of(key)
  if crashed and entry.tries >= attempts then
    number, ms = head_drop(key, entry, 'its worker ended, or lost its lease, too often')
  else
    redis.call('ZREM', pool .. 'taken:' .. entry.owner, key)
    entry.token = '-'
    entry_write(key)
    event('returned ' .. number .. ' ' .. entry.epoch .. ' ' .. entry.tries, { key, entry.owner })
  end
  if number then
    ready_add(entry.owner, key, ms)
  end
end
