#!lua flags=allow-oom
-- repeatable
-- Brings an operation into another state, if it is in one of those that lead there.
-- KEYS  1 operations, 2 those that are open
-- ARGV  1 id, 2 state, 3 '1' if it ends by that, then the states that lead there
-- Reply the operation as it is now (see operation_begin), '' if there is none
--- @include "store/_now"
local found = redis.call('HGET', KEYS[1], ARGV[1])
if not found then
  return ''
end
local state, begun, asked = string.match(found, '^(%S+) (%d+) %d+ (.*)$')
for i = 4, #ARGV do
  if state == ARGV[i] then
    local ends = ARGV[3] == '1'
    found = string.format('%s %s %.0f %s', ARGV[2], begun, ends and now() or 0, asked)
    redis.call('HSET', KEYS[1], ARGV[1], found)
    if ends then
      redis.call('SREM', KEYS[2], ARGV[1])
    end
    break
  end
end
return found
