#!lua flags=no-writes
-- repeatable
-- What a worker of a mirrored pool has: its keys, and those of which messages wait, the oldest first.
-- KEYS  1 head
-- ARGV  1 terms, 2 worker, - is nobody, 3 version of which the caller knows the keys, or '', 4 most keys
--       with messages
-- Reply {missing}, or {version, worker that was picked last, how many keys with messages, these, then all
--       its keys unless the version is the known one}
--- @include "store/_now"
--- @include "_pool"
local refused = refusal()
if refused then
  return { refused }
end
local uid, version = ARGV[2], text_of(head.version)
local ready = redis.call('ZRANGE', pool .. 'ready:' .. uid, 0, tonumber(ARGV[4]) - 1)
local keys = version ~= ARGV[3] and redis.call('ZRANGE', pool .. 'keys:' .. uid, 0, -1) or {}
local reply = { version, head.iterator, #ready }
for _, each in ipairs({ ready, keys }) do
  for _, key in ipairs(each) do
    reply[#reply + 1] = key
  end
end
return reply
