-- What lies in `retry` and `dead`, as it will be: nothing is written before "queue_write". Include
-- "shard" and "entry" before it. `which` is 'retry' or 'dead', a number is one of its own.
--   record_of(which, number)            the record; nil when it is gone
--   record_replace(which, number, record)
--   queue_push(which, entry, record)    behind the last of its group; a fresh head has c just below
--                                       it. Returns the number
--   queue_drop(which, entry)            takes the head off: it is settled, or moved
--   alone_push(which, record), alone_drop(which, number)
--                                       the same for what has no entry
local COUNTERS = {
  retry = { last = 'y', bytes = 'retry_bytes', count = 'retry_count', links = 'rnext' },
  dead = { last = 'z', bytes = 'dead_bytes', count = 'dead_count', links = 'dnext' }
}
local records = { retry = {}, dead = {} }
local links = { retry = {}, dead = {} }
local loaded = { retry = {}, dead = {} }
local function record_of(which, number)
  local record = records[which][number]
  if record == nil then
    record = loaded[which][number]
    if record == nil then
      record = redis.call('HGET', shard .. which, text_of(number))
      loaded[which][number] = record
    end
  end
  return record or nil
end
local function size_of(which, number)
  local record = records[which][number] or loaded[which][number]
  return record and #record or redis.call('HSTRLEN', shard .. which, text_of(number))
end
local function grow(which, bytes, count)
  local names = COUNTERS[which]
  head[names.bytes] = head[names.bytes] + bytes
  head[names.count] = head[names.count] + count
  head.changed = true
end
local function record_replace(which, number, record)
  grow(which, #record - size_of(which, number), 0)
  records[which][number] = record
end
local function alone_push(which, record)
  local last = COUNTERS[which].last
  head[last] = head[last] + 1
  records[which][head[last]] = record
  grow(which, #record, 1)
  return head[last]
end
local function alone_drop(which, number)
  grow(which, -size_of(which, number), -1)
  records[which][number] = false
end
local function queue_push(which, entry, record)
  local number, queue = alone_push(which, record), entry[which]
  if queue.n > 0 then
    links[which][queue.p] = number
  else
    queue.c, queue.h = number - 1, number
  end
  queue.p, queue.n = number, queue.n + 1
  return number
end
local function queue_drop(which, entry)
  local queue = entry[which]
  local number, following = queue.h, 0
  if queue.n > 1 then
    following = links[which][number]
      or redis.call('HGET', shard .. COUNTERS[which].links, text_of(number))
    links[which][number] = false
  end
  alone_drop(which, number)
  queue.c, queue.h, queue.n = number, tonumber(following), queue.n - 1
end
