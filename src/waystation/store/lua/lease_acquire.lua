#!lua flags=allow-oom
-- repeatable
-- Acquire a lease that is free or expired. Every new owner gets a new epoch.
-- A second run by the owner returns the same epoch and extends the lease.
-- Runs in a full store too, because the process that frees memory needs a lease first.
--
-- KEYS    1 lease
-- ARGV    1 owner, 2 length in ms
-- Reply   {epoch}                     the caller owns the lease
--         {0, owner, ms remaining}    another process owns it
-- Errors  'DAMAGED <key>': the epoch or the deadline of the lease is no number
--- @include "_now"
local at = now()
local found = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'until_ms')
local epoch, owner, deadline = tonumber(found[1] or '0'), found[2], tonumber(found[3] or '0')
if not epoch or not deadline or epoch % 1 ~= 0 then
  error({ err = 'DAMAGED ' .. KEYS[1] })
end
if owner ~= ARGV[1] or deadline == 0 then
  if deadline > at then
    return { 0, owner, deadline - at }
  end
  epoch = epoch + 1
end
redis.call('HSET', KEYS[1], 'epoch', epoch, 'owner', ARGV[1],
  'until_ms', string.format('%.0f', at + tonumber(ARGV[2])))
return { epoch }
