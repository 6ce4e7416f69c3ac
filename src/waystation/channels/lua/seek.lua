#!lua flags=allow-oom
-- repeatable
-- Move the cursor of a subscriber forwards or backwards and wake its polls.
-- A second run moves it to the same place, or past messages that were published in between.
-- Runs in a full store too, because it replaces a value of the same size.
--
-- KEYS    1 clock of the channel, 2 cursor of the subscriber
-- ARGV    1 prefix of message keys, 2 expiry in seconds,
--         3 'beginning' | 'end' | 'clock' | 'time', 4 clock, or time in ms since 1970,
--         5 pub/sub topic,
--         6 record log or '', 7 policy and names for its entries, 8 name of the subscriber
-- Reply   {cursor, number of unread clocks}
--         {}                              the channel or the subscriber does not exist
--         {'range', lowest, highest}      the clock is outside of the stored messages
-- Errors  DAMAGED <key>, nothing written: the clock or the cursor is not an integer
--- @include "store/_now"
--- @include "_clock"
--- @include "_reach"
local clock, former = read_clocks()
if not clock or not former then
  return {}
end
local ttl, to, target = ARGV[2], ARGV[3], tonumber(ARGV[4])
local at = now()

-- Return true if the message so many steps before the newest one exists and, for a seek to a time,
-- was published at that time or later.
local function matches(steps)
  local left = redis.call('PTTL', ARGV[1] .. text(before(clock, steps)))
  if left < 0 then
    return left == -1 and to ~= 'time'
  end
  return to ~= 'time' or at + left - tonumber(ttl) * 1000 >= target
end

local unread = to == 'end' and 0 or reach(matches)
if to == 'clock' then
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
if ARGV[6] ~= '' and redis.call('EXISTS', ARGV[6] .. ':head') == 1 then
--- @include "_record"
  record_write(ARGV[6], ARGV[7], at, 1, function()
    return record_event('sought ' .. cursor, record_text(ARGV[8]))
  end)
end
return { cursor, unread }
