#!lua flags=allow-oom
-- repeatable
-- Lets a frozen shard go on.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone)
-- Reply {missing}, or {1} thawed, {0} it was not frozen
--- @include "_shard"
if refusal('anyone') == 'missing' then
  return { 'missing' }
end
return { redis.call('HDEL', shard .. 'head', 'frozen') }
