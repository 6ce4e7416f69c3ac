#!lua flags=allow-oom
-- repeatable
-- Moves a cursor to where reading shall go on, forwards or backwards, and wakes its polls.
-- KEYS  1 clock of the channel, 2 cursor of the subscriber
-- ARGV  1 prefix of message keys, 2 TTL in seconds,
--       3 'end' | 'beginning' | 'clock' | 'time', 4 clock, or ms since the epoch, 5 wake-up topic
-- Reply {} when the channel or the subscriber is missing, else {cursor, number of clocks unread};
--       {'range', lowest, highest} for a clock outside of what is kept
--- @include "store/_now"
--- @include "_clock"
--- @include "_reach"
local clock = tonumber(redis.call('GET', KEYS[1]) or nil)
if not clock or redis.call('EXISTS', KEYS[2]) == 0 then
  return {}
end
local ttl, how, target = ARGV[2], ARGV[3], tonumber(ARGV[4])
local at = now()

local function matches(steps)
  -- Whether the message so many steps back is kept and, for a time, not older than that.
  local left = redis.call('PTTL', ARGV[1] .. text(before(clock, steps)))
  if left < 0 then
    return left == -1 and how ~= 'time'
  end
  return how ~= 'time' or at + left - tonumber(ttl) * 1000 >= target
end

local unread = how == 'end' and 0 or reach(matches)
if how == 'clock' then
  local wanted = clock - target
  if wanted < 0 then
    wanted = (CLOCK_MAX - target) + (clock - CLOCK_MIN) + 1
  end
  if wanted > unread then
    return { 'range', text(before(clock, unread)), text(clock) }
  end
  unread = wanted
end
local cursor = text(before(clock, unread))
redis.call('SET', KEYS[2], cursor, 'EX', ttl)
redis.call('EXPIRE', KEYS[1], ttl, 'GT')
if unread > 0 then
  redis.pcall('PUBLISH', ARGV[5], 'sought')
end
return { cursor, unread }
