#!lua
-- repeatable
-- Puts messages at the end of an agent's list, each of them once.
-- What it has got, by its number, it does not get again: so whoever pushes a number pushes all before it
-- that the list may lack.
-- KEYS  1 list, 2 last number that it has got
-- ARGV  number, message, number, message, ...
-- Reply last number that it has got
local pushed = tonumber(redis.call('GET', KEYS[2]) or '0')
local last = pushed
for i = 1, #ARGV, 2 do
  local number = tonumber(ARGV[i])
  if number > last then
    redis.call('RPUSH', KEYS[1], ARGV[i + 1])
    last = number
  end
end
if last > pushed then
  redis.call('SET', KEYS[2], string.format('%.0f', last))
end
return last
