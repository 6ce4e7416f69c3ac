-- log_trim(log, at, most, coming): removes up to `most` of the oldest messages of a log in the slot
-- of the calling script, as far as its retention lets them go, with room for `coming` bytes.
-- A reader whose name begins with ~ yields: its hold spares what is old, but where bytes have to go it
-- stops nothing, and where nobody else reads it is as good as none.
-- Returns a table: removed, more (another step would find something), first, end_, bytes, held (what
-- readers still need from there on; nil without readers that count), slowest (the one who needs that;
-- nil without readers), max_bytes, max_age_ms, policy, version (of these limits), dropped. Nil when
-- there is no such log.
local function log_trim(log, at, most, coming)
  local state = redis.call(
    'HMGET', log .. ':head', 'first', 'end', 'bytes', 'max_bytes', 'max_age_ms', 'policy', 'dropped',
    'limits_version', 'unread_bytes', 'sealed', 'unread'
  )
  if not state[1] then
    return nil
  end
  -- What readers need that do not yield, and what any reader needs.
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
  local first, bytes, dropped = tonumber(state[1]), tonumber(state[3]), tonumber(state[7])
  local room = state[4] and tonumber(state[4]) - coming
  local oldest = state[5] and at - tonumber(state[5])
  local drops = state[6] == 'drop_and_count'
  -- While no reader has registered, a log that may drop keeps little; a sealed one was read to its end.
  local unread = drops and state[9] and not any and not state[10]
  if unread then
    room = math.min(room or math.huge, tonumber(state[9]) - coming)
  end
  local removed, seen, chunk, finished = 0, 0, 1, false
  -- Offsets are parsed, not counted: entries may be missing.
  local next_first = first
  -- In chunks that grow while messages are small: large ones must not be looked at by hundreds.
  while not finished and removed < most and seen < 1048576 do
    local count = math.min(chunk, most - removed)
    local from = string.format('%.0f', next_first)
    local entries = redis.call('XRANGE', log, from, '+', 'COUNT', count)
    chunk = math.min(2 * chunk, 16)
    for _, entry in ipairs(entries) do
      local size = #entry[2][2]
      local offset = tonumber(string.match(entry[1], '^%d+'))
      local needed = any and offset >= any
      local old = oldest and tonumber(string.match(entry[1], '-(%d+)$')) < oldest
      local heavy = room and bytes > room
      -- For its age goes what nobody holds. For bytes goes what every reader has passed that does not
      -- yield, or, where losses are allowed, the oldest, needed or not.
      if not (old and not needed) and not (heavy and (drops or (firm and offset < firm))) then
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
      -- All entries are missing: they take no room, and must not keep the log full for ever.
      bytes = 0
      redis.call('HSET', log .. ':head', 'bytes', '0')
    end
    finished = finished or #entries < count
  end
  if removed > 0 then
    first = next_first
    -- An empty log has no bytes, also where entries are missing whose bytes were counted.
    bytes = first == tonumber(state[2]) and 0 or bytes
    redis.call('XTRIM', log, 'MINID', string.format('%.0f', first))
    redis.call(
      'HSET', log .. ':head', 'first', string.format('%.0f', first),
      'bytes', string.format('%.0f', bytes), 'dropped', string.format('%.0f', dropped)
    )
    if unread then
      redis.call('HSET', log .. ':head', 'unread', string.format('%.0f', (state[11] or 0) + removed))
    end
  end
  return {
    removed = removed, more = not finished, first = first, end_ = tonumber(state[2]), bytes = bytes,
    held = (firm or drops) and any or nil, slowest = slowest,
    max_bytes = tonumber(state[4] or nil), max_age_ms = tonumber(state[5] or nil), policy = state[6],
    version = tonumber(state[8] or '0'), dropped = dropped
  }
end
