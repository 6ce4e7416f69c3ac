#!lua flags=allow-oom
-- Claims what is due in the retry set, by putting it off until the claim runs out.
-- A deliverer that dies leaves it there, and so does one of the plugin's that runs beside ours: it
-- sees nothing that is not due. Not repeatable: a second run claims others.
-- KEYS  1 retry set
-- ARGV  1 most messages, 2 length of the claim in ms, 3 bytes after which no more is claimed
-- Reply {member, member, ...}
--- @include "store/_now"
local at, bytes, reply = now(), 0, {}
local due = string.format('%.3f', at / 1000)
local claimed = string.format('%.3f', (at + tonumber(ARGV[2])) / 1000)
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', due, 'BYSCORE', 'LIMIT', 0, ARGV[1])) do
  if bytes > tonumber(ARGV[3]) then
    break
  end
  redis.call('ZADD', KEYS[1], claimed, member)
  reply[#reply + 1] = member
  bytes = bytes + #member
end
return reply
