-- Many keys at once, with one write of each kind for all of them. Include "moves" before it.
--   worker_move(uid, most)   moves keys of a worker that is evicted, draining or leaving; with the last
--                            one it leaves. Returns how many moved, how many are left that can
local function keys_of(uid, count)
  local keys, used = {}, {}
  local words = redis.call('ZRANGE', pool .. 'keys:' .. uid, 0, count - 1, 'WITHSCORES')
  for i = 1, #words, 2 do
    keys[#keys + 1], used[#used + 1] = words[i], words[i + 1]
  end
  entries_read(keys)
  return keys, used
end
local function push(list, ...)
  for _, word in ipairs({ ... }) do
    list[#list + 1] = word
  end
end
local function homes_write(homes)
  for to, home in pairs(homes) do
    redis.call('ZADD', pool .. 'keys:' .. to, unpack(home.keys))
    if #home.ready > 0 then
      ready_hint(to)
      redis.call('ZADD', pool .. 'ready:' .. to, unpack(home.ready))
    end
  end
end
local function keys_move(uid, most, taken)
  local state, moved = worker_read(uid).state, 0
  local keys, used = keys_of(uid, most + taken)
  if state ~= 'draining' then
    for _, key in ipairs(keys) do
      head_free(key, entry_read(key), state == 'evicted')
    end
  end
  local due = #keys > 0 and redis.call('ZMSCORE', pool .. 'ready:' .. uid, unpack(keys))
  local gone, homes = {}, {}
  for i, key in ipairs(keys) do
    local entry, pending = entry_read(key), 0
    if entry.token == '-' and moved < most then
      local to = pick(key, uid)
      local home = homes[to] or { keys = {}, ready = {} }
      homes[to], moved = home, moved + 1
      push(gone, key)
      push(home.keys, used[i], key)
      if due[i] then
        pending = redis.call('LLEN', pool .. 'm:' .. key)
        -- As in key_move: to its new worker it comes now.
        push(home.ready, text_of(math.max(tonumber(due[i]), at)), key)
      end
      load_add(uid, -pending, -1)
      load_add(to, pending, 1)
      key_assign(key, entry, to, REASONS[state])
    end
  end
  if moved > 0 then
    redis.call('ZREM', pool .. 'keys:' .. uid, unpack(gone))
    redis.call('ZREM', pool .. 'ready:' .. uid, unpack(gone))
    homes_write(homes)
  end
  return moved
end
local function worker_move(uid, most)
  local draining = worker_read(uid).state == 'draining'
  local taken = draining and redis.call('ZCARD', pool .. 'taken:' .. uid) or 0
  local moved = most > 0 and keys_move(uid, most, taken) or 0
  local left = redis.call('ZCARD', pool .. 'keys:' .. uid) - taken
  if left == 0 and worker_read(uid).state == 'leaving' then
    load_write()
    redis.call('HDEL', pool .. 'workers', uid)
    redis.call('HDEL', pool .. 'accesses', uid)
    redis.call('ZREM', pool .. 'seen', uid)
    redis.call('ZREM', pool .. 'load', uid)
    head.version, head.changed = head.version + 1, true
  end
  return moved, left
end
