#!lua flags=allow-oom
-- repeatable
-- Store the cached copy of a definition, unless the store has the same or a newer version.
-- A second run changes nothing and replies 0.
-- Runs in a full store too, because purging a topic, which frees memory, starts with this write.
--
-- KEYS    1 cached definition
-- ARGV    1 version, 2 definition as JSON
-- Reply   1 stored, 0 the store has this version or a newer one
-- Errors  none of its own
local known = redis.call('HGET', KEYS[1], 'version')
if known and tonumber(known) >= tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'body', ARGV[2])
return 1
