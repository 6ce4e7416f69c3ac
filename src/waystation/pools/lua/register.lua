#!lua
-- repeatable
-- Registers a worker: it gets keys from now on.
-- Asked again with the same nonce: the same session. With another it is another process, and what the
-- former one had taken counts as crashed.
-- KEYS  1 head
-- ARGV  1 terms, 2 uid, 3 nonce, 4 kind (native, agent)
-- Reply {missing | closed | mirrored | full}, or {session, 1 new, 0 known}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
--- @include "_pick"
--- @include "_heads"
--- @include "_moves"
local refused = refusal(true)
if refused then
  return { refused }
end
local uid, nonce, kind = ARGV[2], ARGV[3], ARGV[4]
if kind == 'native' and redis.call('HEXISTS', KEYS[1], 'mirrored') == 1 then
  -- Messages of its keys lie in lists of agents too: who takes them here would have them twice.
  return { 'mirrored' }
end
local worker = worker_read(uid)
if not worker and redis.call('HLEN', pool .. 'workers') >= workers_max then
  return { 'full' }
end
if worker and worker.nonce == nonce and (worker.state == 'live' or worker.state == 'draining') then
  if kind == 'native' then
    access(uid)
  end
  return { worker.session, 0 }
end
for _, key in ipairs(redis.call('ZRANGE', pool .. 'taken:' .. uid, 0, -1)) do
  head_free(key, entry_read(key), true)
end
head.session, head.version, head.changed = head.session + 1, head.version + 1, true
workers[uid] = {
  state = 'live', session = text_of(head.session), kind = kind, nonce = nonce, registered = text_of(at),
  call = '-'
}
worker_write(uid)
load_add(uid, 0, 0)
live_add(uid)
if kind == 'native' then
  access(uid)
end
adopt(100)
finish()
return { workers[uid].session, 1 }
