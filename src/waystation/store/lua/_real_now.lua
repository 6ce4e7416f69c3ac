-- real_now() returns the store's clock in milliseconds since 1970, which the time machine does not
-- move. It is for facts about processes, such as whether one still runs, and not about data.
local function real_now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
