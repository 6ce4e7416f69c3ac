#!lua flags=allow-oom
-- repeatable
-- Another pool may be served by agents.
-- KEYS  1 claim
-- ARGV  1 pool
-- Reply 1 it had the claim, 0 it had not
if string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) ') == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
