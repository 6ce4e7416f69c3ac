#!lua flags=allow-oom
-- repeatable
-- Says what a reader still needs. A hold moves in both directions, but never below what is kept.
-- One of a later incarnation of its reader stays as it is: who comes late from a former one moves
-- nothing.
-- Also in a full store: what readers have passed is what can go.
-- KEYS  1 head of the log, 2 holds of the log
-- ARGV  1 reader, 2 offset, 3 incarnation
-- Reply {1}, {0} when there is no such log, or {'range', first, end}
local state = redis.call('HMGET', KEYS[1], 'first', 'end')
if not state[1] then
  return { 0 }
end
local offset = tonumber(ARGV[2])
if offset < tonumber(state[1]) or offset > tonumber(state[2]) then
  return { 'range', state[1], state[2] }
end
local present = string.match(redis.call('HGET', KEYS[2], ARGV[1]) or '', ' (%d+)$') or '0'
if tonumber(ARGV[3]) >= tonumber(present) then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. (ARGV[3] == '0' and '' or ' ' .. ARGV[3]))
end
return { 1 }
