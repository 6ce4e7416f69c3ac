-- Notes about replies in a state, which nobody holds for that. Include before it: cell, head,
-- log_trim, log_append, record, sets.
--   noted(id, head, at, fields, cause)   sets fields and records it; what the archive has, or is to
--                                        have, is archived once more
--   noted_write(at)                      writes all that was gathered; last of all
local function noted(id, head, at, fields, cause)
  redis.call('HSET', state_key(id), 'head', head_line(head), unpack(fields))
  if head.state == 'complete' or ASLEEP[head.state] then
    redis.call('PERSIST', state_key(id))
    put('toArchiveZ', at + archive_ms, id)
  end
  record('notified', id, head, nil, cause)
end
local function noted_write(at)
  sets_write()
  record_write(at, true)
end
