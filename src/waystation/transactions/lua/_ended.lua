-- What follows from the ends of one call, and the end of the script itself. Include "complete" before
-- it.
--   ended_write(at, front)   last of all: parents are told, the archive is due, external ids get their
--                            expiry, those who wait for one hear of it; then all else that was
--                            gathered is written. Returns the log's end

-- A child has ended: its result goes into its parent, and the last one queues it. Where there is no
-- room for its output the result is a status alone: so many children must not fill one hash.
local function tell_parent(child, at)
  local link = redis.call('HGET', state_key(child.id), 'parent') or ''
  local parent, round, n = string.match(link, '^(%S+) (%d+) (%d+)$')
  local key = parent and state_key(parent)
  local found = key and redis.call('HMGET', key, 'head', 'kids', 'result:' .. n, 'room') or {}
  local head, kids = found[1] and head_read(found[1]), kids_read(found[2])
  if not head or head.state == 'complete' or not kids or kids.round ~= round or found[3] then
    return
  end
  kids.done = kids.done + 1
  if child.status ~= 'success' and kids.failed == '-' then
    kids.failed = n
    if kids.policy == 'cancel_rest' then
      redis.call('ZADD', cell .. 'sweepZ', at, parent)
      due_hint('sweepZ', at)
    end
  end
  local room = tonumber(found[4] or '0') - #child.output
  local fields = { 'kids', kids_text(kids), 'result:' .. n, child.status }
  if room >= 0 then
    fields[4] = child.status .. ' ' .. child.output
    fields[5], fields[6] = 'room', room
  end
  redis.call('HSET', key, unpack(fields))
  local last = kids.done == kids.total and head.state == 'waiting_children'
  local stopped = last and STOPPED[string.match(head.flags, '[ct]')]
  if stopped then
    complete(parent, head, stopped[1], at)
    record(stopped[2], parent, head)
  elseif last then
    head.state, head.queue = 'queued', 'out'
    redis.call('HSET', key, 'head', head_line(head, at))
    queue_push(queue_key(head), parent)
    record('woken', parent, head)
    reply_put(parent, head, 'status', at)
  else
    redis.call('HSET', key, 'head', head_line(head))
  end
end

local function tell_waiters(at)
  local waited = {}
  for i, til in ipairs(redis.call('ZMSCORE', cell .. 'waitersZ', unpack(ended.ids))) do
    if til and tonumber(til) > at then
      waited[#waited + 1] = ended.ids[i]
    end
  end
  if #waited > 0 then
    -- Only a hint: a user of the store who may not publish must not fail after the writes above.
    redis.pcall('PUBLISH', cell .. 'ended', table.concat(waited, ' '))
  end
end

local function ended_write(at, front)
  local told = 0
  while told < #ended.children do
    -- Parents that end with this one come behind it.
    told = told + 1
    tell_parent(ended.children[told], at)
  end
  for _, id in ipairs(ended.ids) do
    put('toArchiveZ', at + archive_ms, id)
  end
  for _, key in ipairs(ended.external) do
    redis.call('PEXPIRE', key, external_ms)
  end
  sets_write()
  queue_write(front)
  counts_write(at)
  local log_end = record_write(at, true)
  if #ended.ids > 0 then
    tell_waiters(at)
  end
  return log_end
end
