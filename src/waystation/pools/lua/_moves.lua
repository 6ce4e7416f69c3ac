-- How a key changes its worker. Include "pick" and "heads" before it.
--   key_assign(key, entry, to, reason)  the entry alone: a new owner in a new epoch
--   key_move(key, entry, to, reason)    all of it; '-' is nobody. Its head is not taken
--   key_leave(key, entry)               moves a key away from a worker that is to have none, if it may go
--   key_settle(key)                     its entry, with an owner that can have it, or '-'
--   evict(uid)                          a worker gets no more, and is to have none
--   adopt(most)                         what waits for a worker gets one
local REASONS = { evicted = 'stale', draining = 'drained', leaving = 'left' }
local function key_assign(key, entry, to, reason)
  head.epoch, head.version, head.changed = head.epoch + 1, head.version + 1, true
  entry.owner, entry.epoch, entry.since, entry.reason = to, text_of(head.epoch), text_of(at), reason
  entry_write(key)
  event('moved ' .. entry.epoch, { key, to, reason })
end
local function key_move(key, entry, to, reason)
  local from, pending = entry.owner, redis.call('LLEN', pool .. 'm:' .. key)
  if from == to then
    return
  end
  local used = redis.call('ZSCORE', pool .. 'keys:' .. from, key)
  redis.call('ZREM', pool .. 'keys:' .. from, key)
  redis.call('ZADD', pool .. 'keys:' .. to, used, key)
  load_add(from, -pending, -1)
  load_add(to, pending, 1)
  key_assign(key, entry, to, reason)
  if pending > 0 then
    local due = tonumber(redis.call('ZSCORE', pool .. 'ready:' .. from, key))
    redis.call('ZREM', pool .. 'ready:' .. from, key)
    -- To its new worker it comes now: one that was idle is not stale because of it.
    ready_add(to, key, math.max(due, at))
  end
end
local function key_leave(key, entry)
  local worker = worker_read(entry.owner)
  if worker.state == 'live' or (worker.state == 'draining' and entry.token ~= '-') then
    return
  end
  head_free(key, entry, worker.state == 'evicted')
  key_move(key, entry, pick(key, entry.owner), REASONS[worker.state])
end
local function evict(uid)
  worker_read(uid).state = 'evicted'
  worker_write(uid)
  live_remove(uid)
  -- One that waits for something to take learns of it.
  hints[uid] = true
end
local function key_settle(key)
  local entry = entry_make(key)
  if entry.owner == '-' then
    key_move(key, entry, pick(key), entry.epoch == '0' and 'new' or 'adopted')
    return entry
  end
  local worker = worker_read(entry.owner)
  if (worker.state == 'live' or worker.state == 'draining') and is_stale(entry.owner) then
    evict(entry.owner)
  end
  key_leave(key, entry)
  return entry
end
local function adopt(most)
  for _, key in ipairs(redis.call('ZRANGE', pool .. 'ready:-', 0, most - 1)) do
    local to = pick(key)
    if to == '-' then
      return
    end
    key_move(key, entry_read(key), to, 'adopted')
  end
end
