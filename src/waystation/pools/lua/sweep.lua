#!lua flags=allow-oom
-- repeatable
-- Looks after a pool: frees leases that are over, evicts who is stale, moves keys on, forgets.
-- KEYS  1 head
-- ARGV  1 terms, 2 after how many ms a silent worker without messages is forgotten, 3 after how many ms a
--       key without messages is, or -, 4 most keys to move
-- Reply {missing}, or {ok, 1 there is more to do, moved, forgotten keys, freed, then evicted workers}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
--- @include "_pick"
--- @include "_heads"
--- @include "_moves"
--- @include "_many"
--- @include "_over"
local refused = refusal()
if refused then
  return { refused }
end
local forget_ms, retention_ms, room = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local reply, forgotten, moved, freed, more = { 'ok', 0, 0, 0, 0 }, 0, 0, 0, 0
local function forget_keys(uid)
  local key_of = pool .. 'keys:' .. uid
  local before = text_of(at - (retention_ms or 0))
  local old = retention_ms and redis.call('ZRANGE', key_of, '-inf', '(' .. before, 'BYSCORE', 'LIMIT', 0, 100)
  for _, key in ipairs(old or {}) do
    if redis.call('EXISTS', pool .. 'm:' .. key) == 1 then
      -- Looked at again when it may be old once more: others wait behind it.
      redis.call('ZADD', key_of, text_of(at), key)
    else
      redis.call('ZREM', key_of, key)
      entry_forget(key)
      load_add(uid, 0, -1)
      forgotten, head.version, head.changed = forgotten + 1, head.version + 1, true
    end
  end
  more = old and #old == 100 and 1 or more
end
local function look_after(uid)
  local worker, seen = worker_read(uid), seen_of(uid)
  freed = freed + over_free(uid, 100)
  local unheard = worker.kind == 'native' and at - (seen or 0)
  if (worker.state == 'live' or worker.state == 'draining') and is_stale(uid) then
    evict(uid)
    reply[#reply + 1] = uid
  elseif unheard and unheard > forget_ms and load_of(uid) == 0 then
    worker.state = 'leaving'
    worker_write(uid)
    live_remove(uid)
  elseif unheard and unheard > stale_ms then
    live_remove(uid)
  end
  if worker.state ~= 'live' then
    local some, left = worker_move(uid, room)
    moved, room = moved + some, room - some
    more = left > 0 and 1 or more
  end
end
for _, uid in ipairs(redis.call('HKEYS', pool .. 'workers')) do
  look_after(uid)
  forget_keys(uid)
end
forget_keys('-')
adopt(100)
finish()
reply[2], reply[3], reply[4], reply[5] = more, moved, forgotten, freed
return reply
