-- now(): milliseconds since the epoch, by the store's clock alone. Call it once per script: the
-- clock moves on while a script runs.
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
