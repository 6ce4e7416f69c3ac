#!lua flags=allow-oom
-- repeatable
-- Move the cursor of a subscriber forward to an acknowledged message, at most to the clock.
-- A second run finds the cursor there and replies `stale`.
-- Runs in a full store too, because acknowledged messages need no more memory.
--
-- KEYS    1 clock of the channel, 2 cursor of the subscriber
-- ARGV    1 clock of the acknowledged message, 2 expiry in seconds,
--         3 record log or '', 4 policy and names for its entries, 5 name of the subscriber
-- Reply   'moved'
--         'stale'      the cursor is there or further, or the clock is not; nothing changed
--         'missing'    the channel or the subscriber does not exist
-- Errors  DAMAGED <key>, nothing written: the clock or the cursor is not an integer
--- @include "_read_clocks"
local clock, cursor = read_clocks()
if not clock or not cursor then
  return 'missing'
end
local handle = tonumber(ARGV[1])
local ahead = cursor < handle
local reached = handle <= clock
local valid = ahead and reached
if clock < cursor then
  -- The clock has wrapped since: unread messages are above the cursor or up to the clock.
  valid = ahead or reached
end
if not valid then
  return 'stale'
end
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[2], 'GT')
if ARGV[3] ~= '' and redis.call('EXISTS', ARGV[3] .. ':head') == 1 then
--- @include "_record"
  record_write(ARGV[3], ARGV[4], now(), 1, function()
    return record_event('acknowledged ' .. ARGV[1], record_text(ARGV[5]))
  end)
end
return 'moved'
