-- now() in test mode: the store's clock plus the shift that the time machine keeps in the store.
local function now()
  local time = redis.call('TIME')
  local shift = tonumber(redis.call('HGET', 'waystation.time', 'shift_ms') or '0')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + shift
end
