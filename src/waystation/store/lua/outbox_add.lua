-- outbox_add(lane, id, item, at): puts an item into a lane, once per id; true when it was new.
-- The lane is a key prefix in the caller's own slot, so that adding is part of the caller's script.
local function outbox_add(lane, id, item, at)
  if redis.call('HSETNX', lane .. '.items', id, item) == 0 then
    return false
  end
  redis.call('ZADD', lane .. '.due', at, id)
  redis.call('PUBLISH', lane .. '.wake', 'due')
  return true
end
