-- log_trim(log, at, most, coming, short) deletes up to `most` of the oldest messages of a partition, as
-- far as retention permits, to free space for `coming` bytes. The calling script runs in the slot of
-- the partition.
-- A reader whose name starts with ~ yields: its hold protects messages from the age limit only. For the
-- byte limit, a log with only yielding readers is a log without readers.
-- With `short`, the store is short of memory: also delete messages within the limits that all readers
-- have passed. If the policy is `refuse`, do so only if a reader that does not yield has a hold.
-- History yields because it only copies messages. A message that no subscription has processed stays.
-- Return nil if the partition does not exist, or a table:
--   removed, more (another call would delete more), first, end_, bytes,
--   held (first offset that readers need; nil if no hold counts), slowest (reader of the lowest hold),
--   max_bytes, max_age_ms, policy, version (of the limits), dropped (messages that a reader needed)
-- The script ends with the error 'DAMAGED_LOG <key>' if a number of the head is no integer. Entries
-- behind the end, which another program has added, stay and count for nothing.
--- @include "logs/_integer"
local function log_trim(log, at, most, coming, short)
  local head = log .. ':head'
  local state = redis.call(
    'HMGET', head, 'first', 'end', 'bytes', 'max_bytes', 'max_age_ms', 'policy', 'dropped',
    'limits_version', 'unread_bytes', 'sealed', 'unread'
  )
  if not state[1] then
    return nil
  end
  -- Lowest holds: of the readers that do not yield, and of all readers.
  local firm, any, slowest
  local holds = redis.call('HGETALL', log .. ':holds')
  for i = 1, #holds, 2 do
    local offset = tonumber(string.match(holds[i + 1], '^%d+'))
    if not any or offset < any then
      any, slowest = offset, holds[i]
    end
    if string.sub(holds[i], 1, 1) ~= '~' then
      firm = math.min(firm or math.huge, offset)
    end
  end
  local first, end_ = log_integer(state[1], head), log_integer(state[2], head)
  local bytes, dropped = log_integer(state[3], head), log_integer(state[7], head)
  local room = state[4] and tonumber(state[4]) - coming
  local oldest = state[5] and at - tonumber(state[5])
  local drops = state[6] == 'drop_and_count'
  -- A log that may drop stores less while no reader has a hold. This does not apply to a sealed log,
  -- because its readers release their holds after they have read all of it.
  local unread = drops and state[9] and not any and not state[10]
  if unread then
    room = math.min(room or math.huge, tonumber(state[9]) - coming)
  end
  local passed = short and (firm or drops) and any or 0
  local removed, seen, chunk, finished = 0, 0, 1, false
  -- Parse offsets instead of counting them, because entries of a damaged log can be missing.
  local next_first = first
  -- Start with small chunks and double them while messages are small, so that one call never reads
  -- hundreds of large messages.
  while not finished and removed < most and seen < 1048576 do
    local count = math.min(chunk, most - removed)
    local from = string.format('%.0f', next_first)
    local entries = redis.call('XRANGE', log, from, '+', 'COUNT', count)
    chunk = math.min(2 * chunk, 16)
    for _, entry in ipairs(entries) do
      local size = #entry[2][2]
      local offset = tonumber(string.match(entry[1], '^%d+'))
      if offset >= end_ then
        finished = true
        break
      end
      local needed = any and offset >= any
      local old = oldest and tonumber(string.match(entry[1], '-(%d+)$')) < oldest
      local heavy = room and bytes > room
      -- The age limit deletes messages that no reader needs. The byte limit deletes any message if the
      -- policy is `drop_and_count`, else only messages that all readers without ~ have passed.
      local expired = (old and not needed) or (heavy and (drops or (firm and offset < firm)))
      if not expired and offset >= passed then
        finished = true
        break
      end
      if needed then
        dropped = dropped + 1
      end
      removed, bytes, seen = removed + 1, bytes - size, seen + size
      next_first = offset + 1
      chunk = size > 65536 and 1 or chunk
    end
    if removed == 0 and #entries == 0 and bytes > 0 and redis.call('XLEN', log) == 0 then
      -- All entries are missing. Set the size to 0, because a wrong size would keep the log full.
      bytes = 0
      redis.call('HSET', head, 'bytes', '0')
    end
    finished = finished or #entries < count
  end
  if removed > 0 then
    first = next_first
    -- The size of an empty log is 0, even if it still includes entries that are missing.
    bytes = first == end_ and 0 or bytes
    redis.call('XTRIM', log, 'MINID', string.format('%.0f', first))
    redis.call(
      'HSET', head, 'first', string.format('%.0f', first),
      'bytes', string.format('%.0f', bytes), 'dropped', string.format('%.0f', dropped)
    )
    if unread then
      redis.call('HSET', head, 'unread', string.format('%.0f', (state[11] or 0) + removed))
    end
  end
  return {
    removed = removed, more = not finished, first = first, end_ = end_, bytes = bytes,
    held = (firm or drops) and any or nil, slowest = slowest,
    max_bytes = tonumber(state[4] or nil), max_age_ms = tonumber(state[5] or nil), policy = state[6],
    version = tonumber(state[8] or '0'), dropped = dropped
  }
end
