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
    'limits_version'
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
  local removed, seen, chunk, finished = 0, 0, 1, false
  -- In chunks that grow while messages are small: large ones must not be looked at by hundreds.
  while not finished and removed < most and seen < 1048576 do
    local count = math.min(chunk, most - removed)
    local from = string.format('%.0f', first + removed)
    local entries = redis.call('XRANGE', log, from, '+', 'COUNT', count)
    chunk = math.min(2 * chunk, 16)
    for _, entry in ipairs(entries) do
      local size = #entry[2][2]
      local offset = first + removed
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
      chunk = size > 65536 and 1 or chunk
    end
    finished = finished or #entries < count
  end
  if removed > 0 then
    first = first + removed
    redis.call('XTRIM', log, 'MINID', string.format('%.0f', first))
    redis.call(
      'HSET', log .. ':head', 'first', string.format('%.0f', first),
      'bytes', string.format('%.0f', bytes), 'dropped', string.format('%.0f', dropped)
    )
  end
  return {
    removed = removed, more = not finished, first = first, end_ = tonumber(state[2]), bytes = bytes,
    held = (firm or drops) and any or nil, slowest = slowest,
    max_bytes = tonumber(state[4] or nil), max_age_ms = tonumber(state[5] or nil), policy = state[6],
    version = tonumber(state[8] or '0'), dropped = dropped
  }
end
