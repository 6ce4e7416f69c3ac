-- The outbox, for scripts of whoever has something to send. A lane is a key prefix in the caller's
-- own slot, so that adding is part of the caller's script. Only into open lanes: ask first.
--   outbox_closed(lanes)                  nil when all are open, else the reply that tells of it
--   outbox_add(lanes, id, item, at, most) to each, once per id; 'added', 'known', or 'full'
--   outbox_wake(lanes, at)                after adding what is due from then on
local function outbox_closed(lanes)
  local reply, closed = { 'closed' }, false
  for i, lane in ipairs(lanes) do
    reply[i + 1] = redis.call('HGET', lane .. '.gate', 'state') or ''
    closed = closed or reply[i + 1] ~= 'open'
  end
  return closed and reply or nil
end
local function outbox_add(lanes, id, item, at, most)
  local outcome
  for _, lane in ipairs(lanes) do
    local full = redis.call('ZCARD', lane .. '.due') >= tonumber(most)
    if full and redis.call('HEXISTS', lane .. '.items', id) == 0 then
      redis.call('HINCRBY', lane .. '.gate', 'dropped', 1)
      outcome = 'full'
    elseif full or redis.call('HSETNX', lane .. '.items', id, item) == 0 then
      outcome = 'known'
    else
      redis.call('ZADD', lane .. '.due', at, id)
      outcome = 'added'
    end
  end
  return outcome
end
local function outbox_wake(lanes, at)
  for _, lane in ipairs(lanes) do
    -- Where something was due before, deliverers know it: they look again when they have a slot.
    if redis.call('ZCOUNT', lane .. '.due', '-inf', string.format('(%.0f', at)) == 0 then
      -- Only a hint: a user of the store who may not publish must not fail after the writes above.
      redis.pcall('PUBLISH', lane .. '.wake', 'due')
    end
  end
end
