-- outbox_put(at, keys, item, event): puts the newest event of an item into a lane whose register is
-- in its own slot, due at `at`; it takes the place of an older one that was not sent yet, or has
-- failed. `keys`: lane (which is its key of due items), items, register, failed. While an attempt is
-- under way it is only noted: it is due when that is settled, or when its claim runs out.
-- Of lanes that were put into by this call before it is known that they are listed, with something due.
local outbox_known = {}
local function outbox_put(at, keys, item, event)
  local lane, items, register, failed = keys[1], keys[2], keys[3], keys[4]
  if redis.call('HSET', items, item, event) == 0 then
    if redis.call('HEXISTS', items, item .. '.token') == 1 then
      redis.call('HSET', items, item .. '.newer', '1')
      return
    end
    -- What is new has none of these: they go with their item.
    if redis.call('ZREM', failed, item) == 1 then
      redis.call('HDEL', items, item .. '.attempts', item .. '.cause', item .. '.lane')
    else
      redis.call('HDEL', items, item .. '.attempts', item .. '.cause')
    end
  end
  local score = string.format('%.0f', at)
  if outbox_known[lane] then
    redis.call('ZADD', lane, score, item)
    return
  end
  outbox_known[lane] = true
  local due = redis.call('ZCOUNT', lane, '-inf', score)
  redis.call('ZADD', lane, score, item)
  -- Only hints: a user of the store who may not publish must not fail after the writes above.
  if redis.call('ZADD', register, 'NX', score, lane) == 1 then
    redis.pcall('PUBLISH', register, 'lane')
  end
  if due == 0 then
    -- Where something was due before, deliverers know it: they look when they have a slot.
    redis.pcall('PUBLISH', lane .. '.wake', 'due')
  end
end
