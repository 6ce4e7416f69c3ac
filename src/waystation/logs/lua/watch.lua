#!lua flags=allow-oom
-- repeatable
-- Has the next append told to who waits for it, and answers with the state of this moment.
-- Also in a full store: who reads makes room.
-- KEYS  1 head of the log
-- ARGV  the fields to answer with
-- Reply the fields, or {} when there is no such log
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end
redis.call('HSET', KEYS[1], 'watched', '1')
return redis.call('HMGET', KEYS[1], unpack(ARGV))
