#!lua flags=allow-oom
-- repeatable
-- Read the next messages of a subscriber and move its cursor past expired ones.
-- A second run returns the same messages, because only an acknowledgement moves the cursor past them.
-- Runs in a full store too, because subscribers must be able to read and acknowledge.
--
-- KEYS    1 clock of the channel, 2 cursor of the subscriber
-- ARGV    1 prefix of message keys, 2 maximum number of messages, 3 bytes after which to stop,
--         4 expiry in seconds, 5 maximum number of clocks to read in this call,
--         6 clock to continue after without moving the cursor; empty: read after the cursor
-- Reply   {clock of the channel, last, expired, body, body, ...}
--           last      clock of the last body; without a body the new cursor
--           expired   number of expired messages up to `last`
--         {}          the channel or the subscriber does not exist
-- Errors  DAMAGED <key>, nothing written: the clock or the cursor is not an integer, or a message
--         is not a string
--- @include "_clock"
--- @include "_read_strings"
-- A longer distance means that the clock was lost and started again: to publish so many messages
-- within the longest expiry, one year, takes 139,000 per second.
local UNREAD_MAX = 4398046511104
-- Number of bodies per read: few at first, because a body can have a megabyte, then as many as fit.
-- In a gap only existence is checked, which is cheap.
local BODIES_FIRST, BODIES_MAX, GAP = 8, 100, 500

local clock, cursor = read_clocks()
if not clock or not cursor then
  return {}
end
local cursor_moved = false

local function unread_after(position)
  if position <= clock then
    return clock - position
  end
  return (CLOCK_MAX - position) + (clock - CLOCK_MIN) + 1
end

if unread_after(cursor) > UNREAD_MAX then
  -- The clock was lost and started again at 0.
  cursor, cursor_moved = (clock >= 0 and clock <= UNREAD_MAX) and 0 or clock, true
end

local continues = ARGV[6] ~= ''
local start = continues and tonumber(ARGV[6]) or cursor
local most, bytes_max = tonumber(ARGV[2]), tonumber(ARGV[3])
local steps_max = math.min(unread_after(start), tonumber(ARGV[5]))
local bodies, bytes, last, expired = {}, 0, start, 0
-- Number of clocks read from the start, number of expired ones among them, whether the last one was
-- expired, and the step by which the gap is known to end.
local seen, gone, in_gap, gap_ends_by = 0, 0, false, 0

local function next_keys(count)
  local keys, position = {}, after(start, seen)
  for step = 1, count do
    keys[step] = string.format('%s%.0f', ARGV[1], after(position, step))
  end
  return keys
end

while seen < steps_max and #bodies < most and bytes < bytes_max do
  if in_gap and seen >= gap_ends_by then
    local count = math.min(steps_max - seen, GAP)
    if redis.call('EXISTS', unpack(next_keys(count))) > 0 then
      gap_ends_by = seen + count
    else
      seen, gone = seen + count, gone + count
    end
  else
    local fit = BODIES_FIRST
    if #bodies > 0 then
      fit = math.min(BODIES_MAX, math.ceil((bytes_max - bytes) * #bodies / (bytes + 1)))
    end
    local count = math.min(steps_max - seen, most - #bodies, fit)
    local found = read_strings(next_keys(count))
    in_gap = true
    for step = 1, count do
      seen = seen + 1
      if not found[step] then
        gone = gone + 1
      else
        in_gap = false
        if #bodies == 0 and gone > 0 and not continues then
          cursor, cursor_moved = after(start, seen - 1), true
        end
        bodies[#bodies + 1] = found[step]
        bytes = bytes + #found[step]
        last, expired = after(start, seen), gone
        if bytes >= bytes_max then
          break
        end
      end
    end
  end
end
if #bodies == 0 and gone > 0 and not continues then
  cursor, cursor_moved = after(start, seen), true
  last, expired = cursor, gone
end
-- Write last, because a damaged message ends the script before, and nothing must change then.
redis.call('EXPIRE', KEYS[1], ARGV[4], 'GT')
if cursor_moved then
  redis.call('SET', KEYS[2], text(cursor), 'EX', ARGV[4])
else
  redis.call('EXPIRE', KEYS[2], ARGV[4])
end
return { text(clock), text(last), text(expired), unpack(bodies) }
