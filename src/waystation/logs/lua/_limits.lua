-- log_limits(head, max_bytes, max_age_ms, policy, version, unread_bytes) writes the limits of a
-- partition. '' removes a limit. `unread_bytes` applies while no reader has a hold.
-- `version` is the version of the definition that sets the limits. Only a higher version replaces
-- stored limits, so that a late call does not undo a newer one. Version 0 replaces any limits.
local function log_limits(head, max_bytes, max_age_ms, policy, version, unread_bytes)
  local counted = tonumber(version) > 0
  if counted and tonumber(version) <= tonumber(redis.call('HGET', head, 'limits_version') or '0') then
    return
  end
  redis.call('HSET', head, 'policy', policy)
  if counted then
    redis.call('HSET', head, 'limits_version', version)
  end
  local limits = { max_bytes = max_bytes, max_age_ms = max_age_ms, unread_bytes = unread_bytes }
  for name, value in pairs(limits) do
    if value == '' then
      redis.call('HDEL', head, name)
    else
      redis.call('HSET', head, name, value)
    end
  end
end
