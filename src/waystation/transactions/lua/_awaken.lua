-- Queues what sleeps. Include before it: cell, head, outbox_put, reply_put, queue_push, log_trim,
-- log_append, record, counts, sets.
--   awaken(id, head, at, kind, cause)  to `qInL` of its node group, off the sets, without expiry. With
--                                      a kind of record the state is to be archived as it is now
local function awaken(id, head, at, kind, cause)
  head_rest(head)
  head.state, head.queue = 'queued', 'in'
  head.wake, head.switch = 0, '-'
  off('sleepingZ', id)
  if kind then
    head.archive = 'snapshot'
    put('toArchiveZ', at, id)
  else
    head.archive = '-'
    off('toArchiveZ', id)
  end
  redis.call('HSET', state_key(id), 'head', head_line(head, at))
  redis.call('PERSIST', state_key(id))
  queue_push(queue_key(head), id)
  count_of(head, 'woken')
  record(kind or 'woken', id, head, nil, cause)
  reply_put(id, head, 'status', at)
end
