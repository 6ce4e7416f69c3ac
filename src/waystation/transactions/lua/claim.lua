#!lua flags=allow-oom
-- Claims what is queued for a node group: it runs from now on, under a lease and a new epoch. What is in
-- a queue and not queued is dropped and counted; what begins a paused pipeline is held.
-- KEYS  1 record log
-- ARGV  1 terms, 2 node group, 3 node, 4 number of the claim, 5 most ids, 6 length of the lease in ms,
--       7 bytes after which no more is claimed, 8 most ids of the queue of transactions that begin, which
--       are fewer while the store is full
-- Reply {ms, log end, left in the queues, dropped, admin events applied, then for each: id, head, state,
--       all its fields or ''}. Transactions that stay queued because of argument 8 are not counted as left.
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_queues"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_admin"
local at, group, node = now(), ARGV[2], ARGV[3] .. ':' .. ARGV[4]
local bytes_max, lease_end = tonumber(ARGV[7]), at + tonumber(ARGV[6])
local since = string.format('%.0f', at)
local admin, paused = admin_apply(group)
local left, dropped, bytes, pauses = 0, 0, 0, {}
local reply = { since, '', 0, 0, admin }

local function is_paused(owner, pipeline)
  local name = pipeline_key(owner, pipeline)
  if pauses[name] == nil then
    pauses[name] = redis.call('HGET', cell .. 'pipelineH:' .. name, 'paused') == '1'
  end
  return pauses[name]
end

local function drop(line)
  -- Cancelled in the queue is as it should be; anything else is not.
  local head = line and head_read(line)
  local cancelled = head and head_rest(head).status == 'cancelled'
  count('dropped:::' .. (cancelled and 'cancelled' or 'not-queued'))
  dropped = dropped + 1
end

local function hold(id, line)
  local head = head_rest(head_read(line))
  head.state = 'held'
  redis.call('HSET', state_key(id), 'head', head_line(head, at))
  redis.call('RPUSH', cell .. 'holdL:' .. pipeline_key(head.owner, head.pipeline), id)
  record('held', id, head)
  reply_put(id, head, 'status', at)
end

local function take(id)
  local key = state_key(id)
  -- What is there and no hash is dropped as what is not there: an error would lose the others.
  local found = redis.pcall('HMGET', key, 'head', 'state')
  local line, queue, pipeline, owner, flags
  if found[1] and found[2] then
    line, queue, pipeline, owner, flags = head_claimed(found[1], since, node)
  end
  if not line then
    return drop(found[1])
  elseif queue == 'in' and is_paused(owner, pipeline) then
    return hold(id, found[1])
  end
  redis.call('HSET', key, 'head', line)
  put('processingZ', at, id)
  put('leaseZ', lease_end, id)
  count(count_name(group, owner, pipeline, 'claimed'))
  local fields = string.find(flags, 'x', 1, true) and redis.call('HGETALL', key) or ''
  for i = 1, #fields do
    bytes = bytes + #fields[i]
  end
  bytes = bytes + #found[2]
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, line, found[2], fields
end

local wanted, wanted_new = tonumber(ARGV[5]), tonumber(ARGV[8])
for place, list in ipairs(paused and {} or queues(group)) do
  local most = place == 1 and wanted or math.min(wanted, wanted_new)
  local ids = most > 0 and redis.call('LRANGE', list, 0, most - 1) or {}
  local looked = 0
  while looked < #ids and bytes < bytes_max do
    looked = looked + 1
    take(ids[looked])
  end
  if looked > 0 then
    redis.call('LTRIM', list, looked, -1)
  end
  if looked < #ids or most == wanted and #ids == wanted then
    left = left + redis.call('LLEN', list)
  end
  wanted = bytes < bytes_max and wanted - looked or 0
end
sets_write()
counts_write(at)
reply[2], reply[3], reply[4] = record_write(at, true), left, dropped
return reply
