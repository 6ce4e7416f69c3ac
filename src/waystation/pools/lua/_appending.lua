-- How a message comes to the end of its key's list. Include "moves" before it.
--   is_full(key, packed)   whether there is no room for it
--   append(key, packed)    puts it there, as the newest number; how many its key has by then
--   leaving                workers that a key was moved away from by that: they have others to move
local leaving = {}
local function is_full(key, packed)
  return head.messages >= messages_max or (bytes_max and head.bytes + #packed > bytes_max)
    or (not entry_read(key) and redis.call('HLEN', pool .. 'keys') + new_entries >= keys_max)
end
local function append(key, packed)
  local before = entry_make(key).owner
  local entry = key_settle(key)
  if entry.owner ~= before and before ~= '-' then
    leaving[before] = true
  end
  head.number, head.changed = head.number + 1, true
  head.messages, head.bytes = head.messages + 1, head.bytes + #packed
  local message = text_of(head.number) .. ' ' .. text_of(at) .. ' ' .. packed
  local count = redis.call('RPUSH', pool .. 'm:' .. key, message)
  redis.call('ZADD', pool .. 'keys:' .. entry.owner, text_of(at), key)
  load_add(entry.owner, 1, 0)
  if count == 1 then
    ready_add(entry.owner, key, at)
  end
  return count
end
