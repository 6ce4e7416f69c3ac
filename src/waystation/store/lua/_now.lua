-- now() returns the store's clock in milliseconds since 1970. Call it once per script, because the
-- clock advances while a script runs.
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
