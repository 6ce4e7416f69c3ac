#!lua flags=allow-oom
-- repeatable
-- Tells a shard of an operation, and its owner by the hint.
-- Also in a full store: a purge, which makes room, begins with it.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone), 2 operation, 3 what is asked
-- Reply {frozen | missing}, or {1} entered, {0} it was there
--- @include "_shard"
local refused = refusal('anyone')
if refused then
  return { refused }
end
local entered = redis.call('HSETNX', shard .. 'ops', ARGV[2], ARGV[3])
redis.call('PUBLISH', shard .. 'due', '')
return { entered }
