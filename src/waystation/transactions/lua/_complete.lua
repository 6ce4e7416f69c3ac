-- The end of a transaction, for every script that can bring it about. Include before it, in this order:
-- now, log_trim, log_append, cell, head, outbox_put, reply_put, due, queue_push, record, counts, sets,
-- kids; and "ended" after it. The script ends with ended_write.
--   complete(id, head, status, at, cause,   ends one: head, state and cause (nil: as they are). The
--            output, state)                 caller records it; its parent is told by ended_write
--   STOPPED[flag]                           status and kind of record of what a flag has stopped
--   ended                                   what was gathered: ids, keys of external ids, children
local STOPPED = { c = { 'cancelled', 'cancelled' }, t = { 'timeout', 'expired' } }
local ended = { ids = {}, external = {}, children = {} }
local function complete(id, head, status, at, cause, output, state)
  head_rest(head)
  local from, key = head.state, state_key(id)
  if from == 'running' then
    off('processingZ', id)
    off('leaseZ', id)
  elseif from == 'sleeping' or from == 'waiting_switch' or from == 'scheduled' then
    off('sleepingZ', id)
    redis.call('PERSIST', key)
  end
  if flagged(head, 'd') then
    off('deadlineZ', id)
  end
  if flagged(head, 'e') then
    local external = redis.call('HGET', key, 'externalId')
    table.insert(ended.external, cell .. 'externalId:' .. head.owner .. ':' .. external)
  end
  if flagged(head, 'p') then
    table.insert(ended.children, { id = id, status = status, output = output or '' })
  end
  if flagged(head, 'x') then
    redis.call('HDEL', key, 'progress', 'progressAt')
    local kids = kids_read(redis.call('HGET', key, 'kids'))
    if kids and kids.done < kids.created then
      -- Nobody waits for these children any more.
      redis.call('ZADD', cell .. 'sweepZ', at, id)
      due_hint('sweepZ', at)
    end
  end
  unflag(head, 'ctsbd')
  head.state, head.status, head.archive = 'complete', status, 'ttl'
  head.wake, head.switch, head.node = '0', '-', '-'
  local line = head_line(head, at)
  if state then
    redis.call('HSET', key, 'head', line, 'state', state)
  else
    redis.call('HSET', key, 'head', line)
  end
  if cause then
    redis.call('HSET', key, 'cause', cause)
  end
  reply_put(id, head, 'complete', at)
  ended.ids[#ended.ids + 1] = id
  count_of(head, 'ended:::' .. status)
end
