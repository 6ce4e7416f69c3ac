-- The outbox, for scripts of whoever has something to send. A lane is a key prefix in the caller's
-- own slot, so that adding is part of the caller's script. Only into open lanes: ask first.
--   outbox_closed(lanes)                nil when all are open, else the reply that tells of it
--   outbox_add(lanes, name, item, most) puts an item into the inbox of each lane, and wakes
--                                       deliverers; its id will be the name and its place there
local function outbox_closed(lanes)
  local reply, closed = { 'closed' }, false
  for i, lane in ipairs(lanes) do
    reply[i + 1] = redis.call('HGET', lane .. '.gate', 'state') or ''
    closed = closed or reply[i + 1] ~= 'open'
  end
  return closed and reply or nil
end
local function outbox_add(lanes, name, item, most)
  for _, lane in ipairs(lanes) do
    local waiting = redis.call('XLEN', lane .. '.in')
    if waiting >= tonumber(most) then
      redis.call('HINCRBY', lane .. '.gate', 'dropped', 1)
    else
      redis.call('XADD', lane .. '.in', '*', name, item)
    end
    if waiting == 0 then
      -- Only a hint: a user of the store who may not publish must not fail after the writes above.
      -- Where something was there before, deliverers know it: they look when they have a slot.
      redis.pcall('PUBLISH', lane .. '.wake', 'due')
    end
  end
end
