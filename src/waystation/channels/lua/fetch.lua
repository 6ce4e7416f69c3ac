#!lua flags=allow-oom
-- repeatable
-- Reads the next messages of a subscriber, and moves its cursor over those that have expired.
-- KEYS  1 clock of the channel, 2 cursor of the subscriber
-- ARGV  1 prefix of message keys, 2 most messages, 3 bytes after which to stop, 4 TTL in seconds,
--       5 most clocks to look at in this call, 6 clock to read on after, which leaves the cursor
--       alone; empty to read after the cursor
-- Reply {} when the channel or the subscriber is missing, else
--       {clock, last, expired, body, body, ...}: `last` is the clock of the last body (without one:
--       where the cursor is), `expired` counts the messages that are gone up to there
--- @include "_clock"
-- No store publishes that many within the longest expiry, a year: it would be 139,000 a second.
local UNREAD_MAX = 4398046511104
-- Bodies can be a megabyte each: few at first, then as many as fit. Existence is cheap: many.
local BODIES_FIRST, BODIES_MAX, GAP = 8, 100, 500

local clock = tonumber(redis.call('GET', KEYS[1]) or nil)
local cursor = tonumber(redis.call('GET', KEYS[2]) or nil)
if not clock or not cursor then
  return {}
end
local ttl = ARGV[4]
redis.call('EXPIRE', KEYS[1], ttl, 'GT')
redis.call('EXPIRE', KEYS[2], ttl)

local function unread_after(position)
  if position <= clock then
    return clock - position
  end
  return (CLOCK_MAX - position) + (clock - CLOCK_MIN) + 1
end
local function move_cursor(to)
  cursor = to
  redis.call('SET', KEYS[2], text(to), 'EX', ttl)
end

if unread_after(cursor) > UNREAD_MAX then
  -- Not behind a clock that went round, but at one that was lost and began again at 0.
  move_cursor((clock >= 0 and clock <= UNREAD_MAX) and 0 or clock)
end

local reads_on = ARGV[6] ~= ''
local start = reads_on and tonumber(ARGV[6]) or cursor
local most, bytes_max = tonumber(ARGV[2]), tonumber(ARGV[3])
local look = math.min(unread_after(start), tonumber(ARGV[5]))
local bodies, bytes, last, expired = {}, 0, start, 0
-- Steps seen from the start, those of them gone, whether we are among gone ones, and up to which
-- step that is known to end.
local seen, gone, in_gap, gap_ends_by = 0, 0, false, 0

local function next_keys(count)
  local keys, position = {}, after(start, seen)
  for step = 1, count do
    keys[step] = string.format('%s%.0f', ARGV[1], after(position, step))
  end
  return keys
end
local function bodies_at_once()
  if #bodies == 0 then
    return BODIES_FIRST
  end
  local fit = math.ceil((bytes_max - bytes) * #bodies / (bytes + 1))
  return math.min(BODIES_MAX, fit)
end

while seen < look and #bodies < most and bytes < bytes_max do
  if in_gap and seen >= gap_ends_by then
    local count = math.min(look - seen, GAP)
    if redis.call('EXISTS', unpack(next_keys(count))) > 0 then
      gap_ends_by = seen + count
    else
      seen, gone = seen + count, gone + count
    end
  else
    local count = math.min(look - seen, most - #bodies, bodies_at_once())
    local found = redis.call('MGET', unpack(next_keys(count)))
    in_gap = true
    for step = 1, count do
      seen = seen + 1
      if not found[step] then
        gone = gone + 1
      else
        in_gap = false
        if #bodies == 0 and gone > 0 and not reads_on then
          move_cursor(after(start, seen - 1))
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
if #bodies == 0 and gone > 0 and not reads_on then
  move_cursor(after(start, seen))
  last, expired = cursor, gone
end
return { text(clock), text(last), text(expired), unpack(bodies) }
