#!lua
-- repeatable
-- Keeps the answer to a message for whoever waits for it; the first one stays.
-- KEYS  1 head
-- ARGV  1 id, 2 answer, 3 how long it is kept in ms
-- Reply {missing}, or {ok}
local pool = string.sub(KEYS[1], 1, -5)
if redis.call('HEXISTS', KEYS[1], 'opened_ms') == 0 then
  return { 'missing' }
end
redis.call('SET', pool .. 'answer:' .. ARGV[1], ARGV[2], 'NX', 'PX', ARGV[3])
redis.call('PUBLISH', pool .. 'answer', ARGV[1])
return { 'ok' }
