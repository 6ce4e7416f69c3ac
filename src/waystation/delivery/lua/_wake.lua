-- wake(lane, due, at): tells deliverers that something is due from then on. Where something was due
-- before, they know it: they look again when they have a slot.
local function wake(lane, due, at)
  if redis.call('ZCOUNT', due, '-inf', string.format('(%.0f', at)) == 0 then
    -- Only a hint: a user of the store who may not publish must not fail after its writes.
    redis.pcall('PUBLISH', lane .. '.wake', 'due')
  end
end
