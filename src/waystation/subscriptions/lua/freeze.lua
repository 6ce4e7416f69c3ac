#!lua flags=allow-oom
-- repeatable
-- Stops all that writes to a shard, until it is thawed.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone), 2 why
-- Reply {missing}, or {1} frozen, {0} it was, for the reason that it has
--- @include "_shard"
if refusal('anyone') == 'missing' then
  return { 'missing' }
end
local frozen = redis.call('HSETNX', shard .. 'head', 'frozen', ARGV[2])
-- Its owner hears of it by the next call.
redis.call('PUBLISH', shard .. 'due', '')
return { frozen }
