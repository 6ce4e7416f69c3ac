#!lua flags=no-writes
-- repeatable
-- Tells how a shard is, at one moment.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone)
-- Reply {missing}, or {now, log end, {fields of `lease`}, {of `head`}, {of `pos`}, {counts: groups, due,
--       taken, failed, alone ones that are redriven}, {first of due, of failed, in ms; 0: none}}
--- @include "store/_now"
--- @include "_shard"
if redis.call('EXISTS', shard .. 'head') == 0 then
  return { 'missing' }
end
local function first(set)
  return redis.call('ZRANGE', shard .. set, 0, 0, 'WITHSCORES')[2] or '0'
end
return {
  text_of(now()), redis.call('HGET', KEYS[1] .. ':head', 'end') or '0',
  redis.call('HGETALL', shard .. 'lease'), redis.call('HGETALL', shard .. 'head'),
  redis.call('HGETALL', shard .. 'pos'),
  {
    redis.call('HLEN', shard .. 'groups'), redis.call('ZCARD', shard .. 'due'),
    redis.call('ZCARD', shard .. 'taken'), redis.call('ZCARD', shard .. 'failed'),
    redis.call('HLEN', shard .. 'alone')
  },
  { first('due'), first('failed') }
}
