#!lua flags=allow-oom
-- repeatable
-- Puts the working copy of a definition, unless a newer one is there.
-- Also into a full store: a purge, which makes room, begins with it.
-- KEYS  1 working copy
-- ARGV  1 version, 2 definition, JSON
-- Reply 1 when it was put, else 0
local known = redis.call('HGET', KEYS[1], 'version')
if known and tonumber(known) >= tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'body', ARGV[2])
return 1
