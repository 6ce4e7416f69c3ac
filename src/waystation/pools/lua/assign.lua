#!lua
-- repeatable
-- Gives a recipient key a worker, if it has none that can have it; or the one that is asked for.
-- KEYS  1 head
-- ARGV  1 terms, 2 recipient key, 3 uid or ''
-- Reply {missing | closed | full | unknown | taken}, or {owner, epoch}
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
local key, uid = ARGV[2], ARGV[3]
local entry, worker = entry_read(key), worker_read(uid)
if uid ~= '' and (not worker or worker.state ~= 'live') then
  return { 'unknown' }
elseif not entry and redis.call('HLEN', pool .. 'keys') >= keys_max then
  return { 'full' }
elseif uid ~= '' and entry and entry.token ~= '-' and entry.owner ~= uid then
  return { 'taken' }
end
if uid ~= '' then
  entry = entry_make(key)
  key_move(key, entry, uid, 'asked')
else
  entry = key_settle(key)
end
finish()
return { entry.owner, entry.epoch }
