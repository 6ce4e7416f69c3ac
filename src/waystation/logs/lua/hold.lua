#!lua flags=allow-oom
-- repeatable
-- Says what a reader still needs. A hold moves in both directions, but never below what is kept.
-- Also in a full store: what readers have passed is what can go.
-- KEYS  1 head of the log, 2 holds of the log
-- ARGV  1 reader, 2 offset
-- Reply {1}, {0} when there is no such log, or {'range', first, end}
local state = redis.call('HMGET', KEYS[1], 'first', 'end')
if not state[1] then
  return { 0 }
end
local offset = tonumber(ARGV[2])
if offset < tonumber(state[1]) or offset > tonumber(state[2]) then
  return { 'range', state[1], state[2] }
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return { 1 }
