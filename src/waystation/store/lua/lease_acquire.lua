#!lua flags=allow-oom
-- repeatable
-- Takes a lease that is free or whose deadline has passed; every new holder gets a new epoch.
-- Also in a full store: who makes room needs a lease first.
-- KEYS  1 lease
-- ARGV  1 owner, 2 length in ms
-- Reply {epoch} when it is ours (asked again: the same epoch, a later deadline),
--       {0, owner, ms left} when another holds it
--- @include "_now"
local at = now()
local found = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'until_ms')
local epoch, owner, deadline = tonumber(found[1] or '0'), found[2], tonumber(found[3] or '0')
if owner ~= ARGV[1] or deadline == 0 then
  if deadline > at then
    return { 0, owner, deadline - at }
  end
  epoch = epoch + 1
end
redis.call('HSET', KEYS[1], 'epoch', epoch, 'owner', ARGV[1],
  'until_ms', string.format('%.0f', at + tonumber(ARGV[2])))
return { epoch }
