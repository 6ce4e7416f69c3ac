#!lua
-- repeatable
-- Opens the gate of a lane that was registered after its gate was looked at.
-- A gate that says something else by now was closed meanwhile, perhaps after that registration.
-- KEYS  1 gate
-- ARGV  1 what the gate said
-- Reply 1 open, 0 closed meanwhile
local state = redis.call('HGET', KEYS[1], 'state') or ''
if state == 'open' then
  return 1
end
if state ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'state', 'open')
redis.call('PERSIST', KEYS[1])
return 1
