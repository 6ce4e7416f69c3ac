#!lua flags=allow-oom
-- repeatable
-- Begins the end of a pool: nothing is taken in or given out from now on.
-- One that was never opened cannot be opened any more, however late somebody comes to do it.
-- KEYS  1 head
-- ARGV  1 incarnation
-- Reply 1 there is something to unlink, 0 there is not, or a later incarnation has begun
if tonumber(redis.call('HGET', KEYS[1], 'incarnation') or '0') > tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'incarnation', ARGV[1])
if redis.call('HEXISTS', KEYS[1], 'opened_ms') == 0 then
  return 0
end
redis.call('HSET', KEYS[1], 'closed', 1)
return 1
