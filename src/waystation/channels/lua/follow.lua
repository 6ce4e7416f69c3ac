#!lua flags=allow-oom
-- repeatable
-- Read the next messages of a stream: those after its own position, which is ahead of the cursor.
-- A second run returns the same messages, because the caller keeps the position.
-- Runs in a full store too, because subscribers must be able to read and acknowledge.
--
-- KEYS    1 clock of the channel, 2 cursor of the subscriber
-- ARGV    1 prefix of message keys, 2 maximum number of messages, 3 bytes after which to stop,
--         4 expiry in seconds, 5 maximum number of clocks to read in this call,
--         6 position of the stream, 7 cursor that the stream knows; both empty at the first read
-- Reply   {clock of the channel, cursor, position, expired, body, body, ...}
--           position  clock of the last body. A read ends before a gap, so that the bodies have
--                     consecutive clocks
--           expired   number of expired messages before the first body
--         {}          the channel or the subscriber does not exist
-- Errors  DAMAGED <key>, nothing written: the clock or the cursor is not an integer, or a message
--         is not a string
--- @include "_clock"
--- @include "_read_strings"
-- As in fetch: a longer distance means that the clock was lost and started again.
local UNREAD_MAX = 4398046511104
-- Few, because a body can have a megabyte and most reads of a stream find one message.
local BODIES_AT_ONCE = 8

local clock, cursor = read_clocks()
if not clock or not cursor then
  return {}
end
local cursor_moved = false

local function steps(from, to)
  if from <= to then
    return to - from
  end
  return (CLOCK_MAX - from) + (to - CLOCK_MIN) + 1
end
local function move_cursor(to)
  cursor, cursor_moved = to, true
end

if steps(cursor, clock) > UNREAD_MAX then
  move_cursor((clock >= 0 and clock <= UNREAD_MAX) and 0 or clock)
end
local position = tonumber(ARGV[6]) or cursor
local known = tonumber(ARGV[7]) or cursor
-- An acknowledgement moves the cursor to the position at most. A cursor elsewhere was moved by a
-- seek, and the stream continues there.
local acknowledged = steps(known, cursor) <= steps(known, position)
if not acknowledged or steps(cursor, position) > steps(cursor, clock) then
  position = cursor
end

local start = position
local most, bytes_max = tonumber(ARGV[2]), tonumber(ARGV[3])
local steps_max = math.min(steps(start, clock), tonumber(ARGV[5]))
local bodies, bytes, seen, expired, ends = {}, 0, 0, 0, false
while seen < steps_max and #bodies < most and bytes < bytes_max and not ends do
  local keys = {}
  for step = 1, math.min(steps_max - seen, most - #bodies, BODIES_AT_ONCE) do
    keys[step] = ARGV[1] .. text(after(start, seen + step))
  end
  local found = read_strings(keys)
  for step = 1, #keys do
    ends = (not found[step] and #bodies > 0) or bytes >= bytes_max
    if ends then
      break
    end
    seen = seen + 1
    if found[step] then
      bodies[#bodies + 1] = found[step]
      bytes = bytes + #found[step]
    else
      expired = expired + 1
    end
  end
end
position = after(start, seen)
if expired > 0 and start == cursor then
  move_cursor(after(start, expired))
end
-- Write last, because a damaged message ends the script before, and nothing must change then.
redis.call('EXPIRE', KEYS[1], ARGV[4], 'GT')
if cursor_moved then
  redis.call('SET', KEYS[2], text(cursor), 'EX', ARGV[4])
else
  redis.call('EXPIRE', KEYS[2], ARGV[4])
end
return { text(clock), text(cursor), text(position), text(expired), unpack(bodies) }
