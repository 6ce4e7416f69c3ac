-- What workers have, and whether one of them is stale. Include "worker" before it.
--   load_add(uid, messages, keys)   changes what a worker has; '-' is nobody, who has what waits
--   load_write()                    writes that; at the end, and before anybody looks
--   load_of(uid)                    messages, keys
--   is_stale(uid)                   the one rule: a message is pending, and neither did the worker do
--                                   anything nor did that message come to it within `stale_ms`. Without
--                                   any access it is not
local loads = {}
local function load_add(uid, messages, keys)
  loads[uid] = (loads[uid] or 0) + messages * PENDING + keys
end
local function load_write()
  for uid, by in pairs(loads) do
    redis.call('ZINCRBY', pool .. 'load', text_of(by), uid)
  end
  loads = {}
end
local function load_of(uid)
  load_write()
  local score = tonumber(redis.call('ZSCORE', pool .. 'load', uid) or '0')
  return math.floor(score / PENDING), score % PENDING
end
local function is_stale(uid)
  local worker, seen, when = worker_read(uid), seen_of(uid), at
  if worker.kind == 'agent' then
    -- It cannot tell us itself: what it did since somebody looked is not known.
    when = math.min(at, tonumber(redis.call('HGET', KEYS[1], 'observed_ms') or at))
  end
  if not seen or when - seen <= stale_ms then
    return false
  end
  local pending, keys = load_of(uid)
  if pending == 0 then
    return false
  end
  -- An agent goes round its keys and waits at each of them.
  local patience = stale_ms + (worker.kind == 'agent' and agent_key_ms * keys or 0)
  local oldest = 0
  if redis.call('ZCARD', pool .. 'taken:' .. uid) == 0 then
    -- What is taken, or was put off, was accessed after it had come: it has no say here.
    local first = redis.call('ZRANGE', pool .. 'ready:' .. uid, 0, 0, 'WITHSCORES')
    local score = tonumber(first[2] or nil) or 0
    oldest = score <= at and score or 0
  end
  return when - math.max(seen, oldest) > patience
end
