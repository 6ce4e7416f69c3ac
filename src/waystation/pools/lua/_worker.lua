-- Workers of a pool. Include "pool" before it.
--   worker_read(uid)            a table (state, session, kind, nonce, registered, call), or nil; the same
--                               one each time in a call
--   worker_write(uid)           writes it
--   caller(uid, session)        the worker that calls; or nil and why it may not
--   seen_of(uid)                its last access; nil: it has none
--   access(uid)                 it is there, by what it does now
--   live_add(uid), live_remove(uid)
--                               whether it gets keys: `live`, and its points on the ring
local PENDING = 1048576
local RING_POINTS = 64
local workers, seen_by = {}, {}
local function worker_read(uid)
  local worker = workers[uid]
  if worker == nil then
    local line = redis.call('HGET', pool .. 'workers', uid)
    worker = false
    if line then
      worker = {}
      worker.state, worker.session, worker.kind, worker.nonce, worker.registered, worker.call =
        string.match(line, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
    end
    workers[uid] = worker
  end
  return worker or nil
end
local function worker_write(uid)
  local w = workers[uid]
  local line = table.concat({ w.state, w.session, w.kind, w.nonce, w.registered, w.call }, ' ')
  redis.call('HSET', pool .. 'workers', uid, line)
end
local function caller(uid, session)
  local worker = worker_read(uid)
  if not worker or worker.session ~= session or worker.state == 'leaving' then
    return nil, 'unknown'
  elseif worker.state == 'evicted' then
    return nil, 'evicted'
  end
  return worker
end
local function seen_of(uid)
  if seen_by[uid] == nil then
    seen_by[uid] = tonumber(redis.call('ZSCORE', pool .. 'seen', uid) or nil) or false
  end
  return seen_by[uid] or nil
end
local function ring_of(uid)
  local points = {}
  for n = 1, RING_POINTS do
    local member = n .. ' ' .. uid
    points[2 * n - 1] = text_of(tonumber(string.sub(redis.sha1hex(member), 1, 12), 16))
    points[2 * n] = member
  end
  return points
end
local function live_add(uid)
  if redis.call('ZADD', pool .. 'live', 'NX', 0, uid) == 1 then
    redis.call('ZADD', pool .. 'ring', unpack(ring_of(uid)))
  end
end
local function live_remove(uid)
  if redis.call('ZREM', pool .. 'live', uid) == 1 then
    local members = {}
    for n = 1, RING_POINTS do
      members[n] = n .. ' ' .. uid
    end
    redis.call('ZREM', pool .. 'ring', unpack(members))
  end
end
local function access(uid)
  redis.call('ZADD', pool .. 'seen', text_of(at), uid)
  seen_by[uid] = at
  if worker_read(uid).state == 'live' then
    live_add(uid)
  end
end
