-- log_append(log, at, payloads, always) appends messages to a partition, all of them or none.
-- The calling script runs in the slot of the partition and includes "logs/_trim" before this file.
-- With `always`, ignore the byte limit. Record logs use it, because a full log must not stop the work
-- that it records.
-- Return the first offset and the time in ms. If the partition rejects the messages, return nil, the
-- reason ('missing', 'sealed', 'full') and a detail: the storage topic that continues a sealed
-- partition, or the max bytes of a full one.
-- The script ends with the error 'DAMAGED_LOG <key>' if a number of the head is no integer, or if another
-- program has written to the log. In both cases nothing is appended.
--- @include "logs/_integer"
local function log_append(log, at, payloads, always)
  local head = log .. ':head'
  local state = redis.call(
    'HMGET', head, 'end', 'ms', 'bytes', 'sealed', 'max_bytes', 'policy', 'watched', 'unread_bytes'
  )
  if not state[1] then
    return nil, 'missing', ''
  end
  if state[4] then
    return nil, 'sealed', state[4]
  end
  local count, size = #payloads, 0
  for i = 1, count do
    size = size + #payloads[i]
  end
  local offset, bytes = log_integer(state[1], head), log_integer(state[3], head)
  -- Times never decrease, because offset_at searches the log by time.
  local ms = math.max(log_integer(state[2], head), at)
  local max_bytes, refuses = tonumber(state[5] or nil), state[6] == 'refuse'
  local unread = not refuses and tonumber(state[8] or nil)
  local short = max_bytes and bytes + size > max_bytes
  if not short and unread and bytes + size > unread then
    short = redis.call('EXISTS', log .. ':holds') == 0
  end
  if short then
    if not (refuses and size > max_bytes) then
      bytes = log_trim(log, at, 500, size).bytes
    end
    if refuses and not always and bytes + size > max_bytes then
      return nil, 'full', state[5]
    end
  end
  local call, format, id = redis.call, string.format, string.format('%%d-%.0f', ms)
  if count > 0 then
    -- The store rejects the first id if another program has added an entry with a higher one.
    local added = redis.pcall('XADD', log, format(id, offset), 'm', payloads[1])
    if type(added) == 'table' then
      local other = string.find(added.err, 'equal or smaller') or string.find(added.err, '^WRONGTYPE')
      error(other and { err = 'DAMAGED_LOG ' .. log } or added)
    end
  end
  for i = 2, count do
    call('XADD', log, format(id, offset + i - 1), 'm', payloads[i])
  end
  call(
    'HSET', head, 'end', format('%.0f', offset + count), 'ms', format('%.0f', ms),
    'bytes', format('%.0f', bytes + size)
  )
  if state[7] then
    -- A reader has called `watch`. Send one hint, because readers call `watch` before each wait.
    call('HDEL', head, 'watched')
    redis.pcall('PUBLISH', log .. ':more', '')
  end
  return offset, ms
end
