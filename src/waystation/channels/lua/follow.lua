#!lua flags=allow-oom
-- repeatable
-- Reads on for a stream: what lies after its own position, which runs ahead of the cursor.
-- KEYS  1 clock of the channel, 2 cursor of the subscriber
-- ARGV  1 prefix of message keys, 2 most messages, 3 bytes after which to stop, 4 TTL in seconds,
--       5 most clocks to look at in this call, 6 position to read after, 7 cursor that the stream
--       knows of; both may be empty
-- Reply {} when the channel or the subscriber is missing, else
--       {clock, cursor, position, expired, body, body, ...}: the bodies lie one after the other up
--       to `position`, since a read ends before a gap; `expired` are gone before the first of them
--- @include "_clock"
-- See fetch: more than this lies ahead only of a cursor whose clock was lost.
local UNREAD_MAX = 4398046511104
-- Bodies can be a megabyte each, and most streams read one.
local BODIES_AT_ONCE = 8

local clock = tonumber(redis.call('GET', KEYS[1]) or nil)
local cursor = tonumber(redis.call('GET', KEYS[2]) or nil)
if not clock or not cursor then
  return {}
end
local ttl = ARGV[4]
redis.call('EXPIRE', KEYS[1], ttl, 'GT')
redis.call('EXPIRE', KEYS[2], ttl)

local function steps(from, to)
  if from <= to then
    return to - from
  end
  return (CLOCK_MAX - from) + (to - CLOCK_MIN) + 1
end
local function move_cursor(to)
  cursor = to
  redis.call('SET', KEYS[2], text(to), 'EX', ttl)
end

if steps(cursor, clock) > UNREAD_MAX then
  move_cursor((clock >= 0 and clock <= UNREAD_MAX) and 0 or clock)
end
local position = tonumber(ARGV[6]) or cursor
local known = tonumber(ARGV[7]) or cursor
-- An acknowledgement moves the cursor up to the position at most. If it is anywhere else, somebody
-- moved the subscriber, and the stream goes where it is.
local acknowledged = steps(known, cursor) <= steps(known, position)
if not acknowledged or steps(cursor, position) > steps(cursor, clock) then
  position = cursor
end

local start = position
local most, bytes_max = tonumber(ARGV[2]), tonumber(ARGV[3])
local look = math.min(steps(start, clock), tonumber(ARGV[5]))
local bodies, bytes, seen, expired, ends = {}, 0, 0, 0, false
while seen < look and #bodies < most and bytes < bytes_max and not ends do
  local keys = {}
  for step = 1, math.min(look - seen, most - #bodies, BODIES_AT_ONCE) do
    keys[step] = ARGV[1] .. text(after(start, seen + step))
  end
  local found = redis.call('MGET', unpack(keys))
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
return { text(clock), text(cursor), text(position), text(expired), unpack(bodies) }
