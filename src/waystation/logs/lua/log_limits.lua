-- log_limits(head, max_bytes, max_age_ms, policy): writes the limits of a log; '' is no limit.
local function log_limits(head, max_bytes, max_age_ms, policy)
  redis.call('HSET', head, 'policy', policy)
  for name, value in pairs({ max_bytes = max_bytes, max_age_ms = max_age_ms }) do
    if value == '' then
      redis.call('HDEL', head, name)
    else
      redis.call('HSET', head, name, value)
    end
  end
end
