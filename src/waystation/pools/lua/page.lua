#!lua flags=no-writes
-- repeatable
-- A page of the map: recipient keys of one worker, or of all, each once or more until the cursor is 0.
-- KEYS  1 head
-- ARGV  1 terms, 2 uid or '', 3 cursor ('0': from the beginning), 4 about how many
-- Reply {missing}, or {now, next cursor, then per key: key, messages, when its head can be taken or until
--       when it is, entry}
--- @include "store/_now"
--- @include "_pool"
local refused = refusal()
if refused then
  return { refused }
end
local uid, of_all = ARGV[2], ARGV[2] == ''
local name = of_all and pool .. 'keys' or pool .. 'keys:' .. uid
local found = redis.call(of_all and 'HSCAN' or 'ZSCAN', name, ARGV[3], 'COUNT', ARGV[4])
local reply = { text_of(at), found[1] }
for i = 1, #found[2], 2 do
  local key = found[2][i]
  local line = of_all and found[2][i + 1] or redis.call('HGET', pool .. 'keys', key)
  local owner, token = string.match(line, '^(%S+) %S+ (%S+)')
  local set = pool .. (token == '-' and 'ready:' or 'taken:') .. owner
  reply[#reply + 1] = key
  reply[#reply + 1] = redis.call('LLEN', pool .. 'm:' .. key)
  reply[#reply + 1] = redis.call('ZSCORE', set, key) or '0'
  reply[#reply + 1] = line
end
return reply
