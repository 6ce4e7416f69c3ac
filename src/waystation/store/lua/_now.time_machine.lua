-- now() of test mode returns the store's clock plus the shift of the time machine, in milliseconds.
local function now()
  local time = redis.call('TIME')
  local shift = tonumber(redis.call('HGET', 'waystation.time', 'shift_ms') or '0')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + shift
end
