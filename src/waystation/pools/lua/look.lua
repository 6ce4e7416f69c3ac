#!lua flags=no-writes
-- repeatable
-- Looks at a recipient key, or at the whole pool.
-- KEYS  1 head
-- ARGV  1 terms, 2 recipient key or ''
-- Reply {missing}. Of a key: {now}, or {now, pending, enqueued ms of its head, due or lease end of it,
--       last access of its worker or '', state and kind of its worker, words of its entry}.
--       Of the pool: {now, version, keys, messages, of these waiting for a worker, how long the first that
--       can be taken has waited in ms, bytes, dead, dropped,
--       then per worker: uid, state, kind, registered ms, keys, messages, taken, last access or ''}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
local refused = refusal()
if refused then
  return { refused }
end
local key, reply = ARGV[2], { text_of(at) }
local function tell(...)
  for _, word in ipairs({ ... }) do
    reply[#reply + 1] = word
  end
end
if key ~= '' then
  local entry = entry_read(key)
  if entry then
    local _, ms = head_of(key)
    local set = entry.token == '-' and 'ready:' or 'taken:'
    local worker = worker_read(entry.owner) or { state = '-', kind = '-' }
    tell(redis.call('LLEN', pool .. 'm:' .. key), text_of(ms or 0))
    tell(redis.call('ZSCORE', pool .. set .. entry.owner, key) or '0')
    tell(seen_of(entry.owner) and text_of(seen_of(entry.owner)) or '', worker.state, worker.kind)
    tell(entry.owner, entry.epoch, entry.token, entry.tries, entry.crashes, entry.since, entry.reason)
  end
  return reply
end
tell(text_of(head.version), redis.call('HLEN', pool .. 'keys'), text_of(head.messages))
local uids, oldest = redis.call('HKEYS', pool .. 'workers'), at
for _, uid in ipairs({ '-', unpack(uids) }) do
  local first = redis.call('ZRANGE', pool .. 'ready:' .. uid, 0, 0, 'WITHSCORES')
  oldest = math.min(oldest, tonumber(first[2] or nil) or at)
end
tell(text_of((load_of('-'))), text_of(at - oldest), text_of(head.bytes))
tell(redis.call('HLEN', pool .. 'dead'), text_of(head.dropped))
for _, uid in ipairs(uids) do
  local worker, messages, keys = worker_read(uid), load_of(uid)
  tell(uid, worker.state, worker.kind, worker.registered, keys, messages)
  tell(redis.call('ZCARD', pool .. 'taken:' .. uid), seen_of(uid) and text_of(seen_of(uid)) or '')
end
return reply
