#!lua flags=allow-oom
-- repeatable
-- Reads the next messages of a subscriber, and moves its cursor over those that have expired.
-- KEYS  1 clock of the channel, 2 cursor of the subscriber
-- ARGV  1 prefix of message keys, 2 most messages, 3 bytes after which to stop, 4 TTL in seconds,
--       5 most clocks to look at in this call
-- Reply {} when the channel or the subscriber is missing, else
--       {clock, cursor, expired, last, body, body, ...}: `expired` counts the messages that are
--       gone up to `last`, the clock of the last body (or the cursor when there is none)
local CLOCK_MAX, CLOCK_MIN = 9007199254740991, -9007199254740991
-- Bodies can be a megabyte each: few at a time. Existence is cheap: many at a time.
local BODIES, GAP = 32, 500

local clock = tonumber(redis.call('GET', KEYS[1]) or nil)
local cursor = tonumber(redis.call('GET', KEYS[2]) or nil)
if not clock or not cursor then
  return {}
end
local ttl = ARGV[4]
redis.call('EXPIRE', KEYS[1], ttl, 'GT')
redis.call('EXPIRE', KEYS[2], ttl)

local function text(number)
  return string.format('%.0f', number)
end
local function after(position, steps)
  -- The clock so many steps after a position, around the end of the range if need be.
  if position <= CLOCK_MAX - steps then
    return position + steps
  end
  return CLOCK_MIN + (steps - (CLOCK_MAX - position) - 1)
end
local function move_cursor(to)
  cursor = to
  redis.call('SET', KEYS[2], text(to), 'EX', ttl)
end

local unread = clock - cursor
if unread < 0 then
  unread = (CLOCK_MAX - cursor) + (clock - CLOCK_MIN) + 1
  if unread > CLOCK_MAX then
    -- Further than half the range: the clock did not go round, it was lost and began again at 0.
    move_cursor(math.min(0, clock))
    unread = clock - cursor
  end
end

local most, bytes_max = tonumber(ARGV[2]), tonumber(ARGV[3])
local look = math.min(unread, tonumber(ARGV[5]))
local bodies, bytes, expired, gone, seen = {}, 0, 0, 0, 0
local start, last = cursor, cursor

local function keys_from(position, count)
  local keys = {}
  for step = 1, count do
    keys[step] = ARGV[1] .. text(after(position, step))
  end
  return keys
end

local in_gap = false
while seen < look and #bodies < most and bytes < bytes_max do
  local count = math.min(look - seen, in_gap and GAP or math.min(BODIES, most - #bodies))
  local keys = keys_from(after(start, seen), count)
  if in_gap and redis.call('EXISTS', unpack(keys)) > 0 then
    in_gap = false
  elseif in_gap then
    seen, gone = seen + count, gone + count
  else
    local found = redis.call('MGET', unpack(keys))
    in_gap = true
    for step = 1, count do
      seen = seen + 1
      local body = found[step]
      if not body then
        gone = gone + 1
      else
        in_gap = false
        if #bodies == 0 and gone > 0 then
          move_cursor(after(start, seen - 1))
        end
        bodies[#bodies + 1] = body
        bytes = bytes + #body
        last = after(start, seen)
        expired = gone
        if bytes >= bytes_max then
          break
        end
      end
    end
  end
end
if #bodies == 0 and gone > 0 then
  move_cursor(after(start, seen))
  last, expired = cursor, gone
end
return { text(clock), text(cursor), text(expired), text(last), unpack(bodies) }
