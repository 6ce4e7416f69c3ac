-- The outbox, for scripts of whoever has something to send. A lane is a key prefix in the caller's
-- own slot, so that adding is part of the caller's script. Only into open lanes: ask first.
--   outbox_look(lanes)                 how many items wait in the inbox of each, for outbox_add;
--                                      or nil and the reply that tells which are closed
--   outbox_add(lanes, waiting, most,   puts an item into the inbox of each lane, and wakes
--              name, item)             deliverers; its id will be the name and its place there
local function outbox_look(lanes)
  local waiting, reply, closed = {}, { 'closed' }, false
  for i, lane in ipairs(lanes) do
    waiting[i], reply[i + 1] = redis.call('XLEN', lane .. '.in'), 'open'
    -- A lane is closed only when nothing is in it.
    if waiting[i] == 0 then
      reply[i + 1] = redis.call('HGET', lane .. '.gate', 'state') or ''
      closed = closed or reply[i + 1] ~= 'open'
    end
  end
  if closed then
    return nil, reply
  end
  return waiting
end
local function outbox_add(lanes, waiting, most, name, item)
  for i, lane in ipairs(lanes) do
    local before = waiting[i]
    if before >= most then
      redis.call('HINCRBY', lane .. '.gate', 'dropped', 1)
    else
      redis.call('XADD', lane .. '.in', '*', name, item)
      waiting[i] = before + 1
    end
    if before == 0 then
      -- Only a hint: a user of the store who may not publish must not fail after the writes above.
      -- Where something was there before, deliverers know it: they look when they have a slot.
      redis.pcall('PUBLISH', lane .. '.wake', 'due')
    end
  end
end
