-- Recipient keys and their messages. Include "pool" before it, and for entry_make "load".
--   entry_read(key)           a table (owner, epoch, token, tries, crashes, since, reason), or nil; the
--                             same one each time in a call. All words but tries and crashes are text
--   entry_make(key)           the same, or a new one, which nobody owns
--   entries_read(keys)        reads several at once
--   entry_write(key)          it has changed; entry_forget(key): it is gone
--   entries_write()           writes all that changed; at the end
--   head_of(key)              number, enqueued ms and envelope of its first message; nil if it has none
local entries, changed_entries, new_entries = {}, {}, 0
local function entry_parse(key, line)
  local entry = false
  if line then
    entry = {}
    entry.owner, entry.epoch, entry.token, entry.tries, entry.crashes, entry.since, entry.reason =
      string.match(line, '^(%S+) (%S+) (%S+) (%d+) (%d+) (%S+) (%S+)$')
    entry.tries, entry.crashes = tonumber(entry.tries), tonumber(entry.crashes)
  end
  entries[key] = entry
end
local function entry_read(key)
  if entries[key] == nil then
    entry_parse(key, redis.call('HGET', pool .. 'keys', key))
  end
  return entries[key] or nil
end
local function entries_read(keys)
  for i, line in ipairs(#keys > 0 and redis.call('HMGET', pool .. 'keys', unpack(keys)) or {}) do
    if entries[keys[i]] == nil then
      entry_parse(keys[i], line)
    end
  end
end
local function entry_write(key)
  changed_entries[key] = true
end
local function entry_forget(key)
  entries[key], changed_entries[key] = false, true
end
local function entries_write()
  local kept = {}
  for key in pairs(changed_entries) do
    local e = entries[key]
    if e then
      kept[#kept + 1] = key
      kept[#kept + 1] =
        table.concat({ e.owner, e.epoch, e.token, e.tries, e.crashes, e.since, e.reason }, ' ')
    else
      redis.call('HDEL', pool .. 'keys', key)
    end
  end
  for from = 1, #kept, 1000 do
    redis.call('HSET', pool .. 'keys', unpack(kept, from, math.min(from + 999, #kept)))
  end
end
local function entry_make(key)
  local entry = entry_read(key)
  if not entry then
    entry = {
      owner = '-', epoch = '0', token = '-', tries = 0, crashes = 0, since = text_of(at), reason = 'new'
    }
    entries[key], new_entries = entry, new_entries + 1
    entry_write(key)
    redis.call('ZADD', pool .. 'keys:-', text_of(at), key)
    load_add('-', 0, 1)
  end
  return entry
end
local function message_parse(message)
  if message then
    local number, ms, from = string.match(message, '^(%d+) (%d+) ()')
    return number, tonumber(ms), string.sub(message, from)
  end
end
local function head_of(key)
  return message_parse(redis.call('LINDEX', pool .. 'm:' .. key, 0))
end
