#!lua flags=allow-oom
-- Takes messages off the front of a list that others write, and keeps them under a lease.
-- What was taken and not settled when its lease ended comes again, before anything newer. Not
-- repeatable: a second run takes others, and those of the first come when their lease is over.
-- KEYS  1 list, 2 leases, 3 taken, 4 number
-- ARGV  1 most messages, 2 length of the lease in ms, 3 bytes after which no more is taken
-- Reply {number, message, number, message, ...}
--- @include "store/_now"
local at, most, bytes_max = now(), tonumber(ARGV[1]), tonumber(ARGV[3])
local reply, bytes = {}, 0
local function give(number, message)
  redis.call('ZADD', KEYS[2], at + tonumber(ARGV[2]), number)
  reply[#reply + 1] = number
  reply[#reply + 1] = message
  bytes = bytes + #message
end
for _, number in ipairs(redis.call('ZRANGE', KEYS[2], '-inf', at, 'BYSCORE', 'LIMIT', 0, most)) do
  local message = redis.call('HGET', KEYS[3], number)
  if not message then
    redis.call('ZREM', KEYS[2], number)
  elseif bytes <= bytes_max then
    give(number, message)
  end
end
while #reply < 2 * most and bytes <= bytes_max do
  -- One by one: messages may be large, and what is not taken need not be read.
  local message = redis.call('LPOP', KEYS[1])
  if not message then
    break
  end
  local number = string.format('%.0f', redis.call('INCR', KEYS[4]))
  redis.call('HSET', KEYS[3], number, message)
  give(number, message)
end
return reply
