#!lua
-- repeatable
-- Moves a cursor to where reading shall go on: forwards or backwards.
-- KEYS  1 clock of the channel, 2 cursor of the subscriber
-- ARGV  1 prefix of message keys, 2 TTL in seconds,
--       3 'end' | 'beginning' | 'clock' | 'time', 4 clock, or ms since the epoch
-- Reply {} when the channel or the subscriber is missing, {'range'} for a clock outside what is
--       kept, else {cursor, number of clocks unread}
--- @include "now"
local CLOCK_MAX, CLOCK_MIN = 9007199254740991, -9007199254740991
local clock = tonumber(redis.call('GET', KEYS[1]) or nil)
if not clock or redis.call('EXISTS', KEYS[2]) == 0 then
  return {}
end
local ttl, how, target = ARGV[2], ARGV[3], tonumber(ARGV[4])
local at = now()

local function back(steps)
  -- The clock so many steps before the newest, around the end of the range if need be.
  if clock - steps >= CLOCK_MIN then
    return clock - steps
  end
  return CLOCK_MAX - (steps - (clock - CLOCK_MIN) - 1)
end
local function name(steps)
  return string.format('%s%.0f', ARGV[1], back(steps))
end
local function matches(steps)
  -- Whether the message so many steps back is kept and, for a time, not older than it. What is
  -- published later expires later, so everything nearer matches too.
  local left = redis.call('PTTL', name(steps))
  if left < 0 then
    return false
  end
  return how ~= 'time' or at + left - tonumber(ttl) * 1000 >= target
end

local unread = 0
if how ~= 'end' then
  -- Double the steps until one does not match, then halve the distance: a few dozen looks.
  local inside, outside = 0, 1
  while matches(outside - 1) do
    inside, outside = outside, outside * 2
  end
  while outside - inside > 1 do
    local middle = math.floor((inside + outside) / 2)
    if matches(middle - 1) then
      inside = middle
    else
      outside = middle
    end
  end
  unread = inside
end
if how == 'clock' then
  local wanted = clock - target
  if wanted < 0 then
    wanted = (CLOCK_MAX - target) + (clock - CLOCK_MIN) + 1
  end
  if wanted > unread then
    return { 'range' }
  end
  unread = wanted
end
local cursor = string.format('%.0f', back(unread))
redis.call('SET', KEYS[2], cursor, 'EX', ttl)
redis.call('EXPIRE', KEYS[1], ttl, 'GT')
return { cursor, unread }
