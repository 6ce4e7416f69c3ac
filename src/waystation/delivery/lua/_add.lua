-- Puts an item into the inbox of each lane, and wakes deliverers; its id will be its name and its place
-- there. Statements, as "_check_gates", which comes before it.
-- Before it: item_name, item, and waiting_max, the most items that wait in a lane.
for i = first_lane, last_lane do
  local lane, before = ARGV[i], waiting[i]
  if before >= waiting_max then
    redis.call('HINCRBY', lane .. '.gate', 'dropped', 1)
  else
    redis.call('XADD', lane .. '.in', '*', item_name, item)
    waiting[i] = before + 1
  end
  if before == 0 then
    -- Only a hint: a user of the store who may not publish must not fail after the writes above.
    -- Where something was there before, deliverers know it: they look when they have a slot.
    redis.pcall('PUBLISH', lane .. '.wake', 'due')
  end
end
