-- log_append(log, at, payloads): appends to a log in the slot of the calling script.
-- Returns the first offset and the time, or nil, a reason ('missing', 'sealed', 'full') and what
-- follows a sealed log. Writes nothing unless it writes all.
local function log_append(log, at, payloads)
  local head = log .. ':head'
  local state = redis.call('HMGET', head, 'end', 'ms', 'bytes', 'sealed', 'refuse_over')
  if not state[1] then
    return nil, 'missing', ''
  end
  if state[4] then
    return nil, 'sealed', state[4]
  end
  local size = 0
  for _, payload in ipairs(payloads) do
    size = size + #payload
  end
  local bytes = tonumber(state[3]) + size
  if state[5] and bytes > tonumber(state[5]) then
    return nil, 'full', ''
  end
  local offset = tonumber(state[1])
  -- Never before the last: time in a log does not run backwards, so it can be searched.
  local ms = math.max(tonumber(state[2]), at)
  local suffix = string.format('-%.0f', ms)
  for i, payload in ipairs(payloads) do
    redis.call('XADD', log, string.format('%.0f', offset + i - 1) .. suffix, 'm', payload)
  end
  redis.call(
    'HSET', head, 'end', string.format('%.0f', offset + #payloads),
    'ms', string.format('%.0f', ms), 'bytes', string.format('%.0f', bytes)
  )
  return offset, ms
end
