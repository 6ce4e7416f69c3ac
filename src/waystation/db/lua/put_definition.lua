#!lua flags=allow-oom
-- repeatable
-- Store the cached copy of a definition, unless the store has a newer version.
-- A copy of the same version is replaced if its text differs: another program has damaged it.
-- A second run changes nothing and replies 0.
-- Runs in a full store too, because purging a topic, which frees memory, starts with this write.
--
-- KEYS    1 cached definition
-- ARGV    1 version, 2 definition as JSON
-- Reply   1 stored, 0 the store has this copy or a newer one
-- Errors  none of its own
local known = redis.call('HMGET', KEYS[1], 'version', 'body')
local version, given = tonumber(known[1] or nil), tonumber(ARGV[1])
if version and (version > given or version == given and known[2] == ARGV[2]) then
  return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'body', ARGV[2])
return 1
