#!lua flags=allow-oom
-- repeatable
-- Forgets a recipient key that has no message: its next one is given a worker anew.
-- KEYS  1 head
-- ARGV  1 terms, 2 recipient key
-- Reply {missing | busy}, or {1 forgotten, 0 it was not known}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
--- @include "_pick"
--- @include "_heads"
local refused = refusal()
if refused then
  return { refused }
end
local key = ARGV[2]
local entry = entry_read(key)
if not entry then
  return { 0 }
elseif redis.call('EXISTS', pool .. 'm:' .. key) == 1 then
  return { 'busy' }
end
redis.call('ZREM', pool .. 'keys:' .. entry.owner, key)
entry_forget(key)
load_add(entry.owner, 0, -1)
head.version, head.changed = head.version + 1, true
finish()
return { 1 }
