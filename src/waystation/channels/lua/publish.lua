#!lua
-- repeatable
-- Publishes one message, unless a message of the same id is remembered.
-- KEYS  1 clock of the channel, 2 deduplication entry of the message
-- ARGV  1 prefix of message keys, 2 body, 3 TTL in seconds, 4 wake-up topic
-- Reply {'accepted' | 'duplicate', clock of the message}
local ttl = ARGV[3]
local known = redis.call('GET', KEYS[2])
local clock = redis.call('GET', KEYS[1])
if known then
  redis.call('EXPIRE', KEYS[1], ttl, 'GT')
  return { 'duplicate', known }
end
if not clock then
  clock = '1'
  redis.call('SET', KEYS[1], clock, 'EX', ttl)
else
  if clock == '9007199254740991' then
    -- The largest integer that Lua can count on; the clock goes round.
    clock = '-9007199254740991'
    redis.call('SET', KEYS[1], clock, 'KEEPTTL')
  else
    clock = string.format('%.0f', redis.call('INCR', KEYS[1]))
  end
  -- GT: a shorter expiry set later must not end the clock before an older subscriber.
  redis.call('EXPIRE', KEYS[1], ttl, 'GT')
end
redis.call('SET', KEYS[2], clock, 'EX', ttl)
redis.call('SET', ARGV[1] .. clock, ARGV[2], 'EX', ttl)
-- Only a hint: a user of the store who may not publish must not fail after the writes above.
redis.pcall('PUBLISH', ARGV[4], 'new message')
return { 'accepted', clock }
