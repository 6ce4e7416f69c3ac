#!lua
-- repeatable
-- Gives an agent keys that it was given outside, if nothing has changed since that was compared.
-- KEYS  1 head
-- ARGV  1 terms, 2 version that it was compared with, 3 uid, then recipient keys
-- Reply {missing | closed | unknown | again}, or {ok, version}
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
local uid = ARGV[3]
local worker = worker_read(uid)
if not worker or worker.state ~= 'live' then
  return { 'unknown' }
elseif text_of(head.version) ~= ARGV[2] then
  return { 'again' }
end
local room = keys_max - redis.call('HLEN', pool .. 'keys')
for i = 4, #ARGV do
  local entry = entry_read(ARGV[i])
  if not entry and new_entries < room then
    entry = entry_make(ARGV[i])
  end
  if entry and entry.token == '-' then
    key_move(ARGV[i], entry, uid, 'adopted')
  end
end
finish()
return { 'ok', text_of(head.version) }
