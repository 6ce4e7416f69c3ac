#!lua
-- repeatable
-- Publishes one message, unless a message of the same id is remembered.
-- KEYS  1 clock of the channel, 2 deduplication entry of the message
-- ARGV  1 prefix of message keys, 2 body, 3 TTL in seconds, 4 wake-up topic
-- Reply {'accepted' | 'duplicate', clock of the message}
--- @include "_append_message"
local outcome, clock = append(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if outcome == 'accepted' then
  -- Only a hint: a user of the store who may not publish must not fail after the writes above.
  redis.pcall('PUBLISH', ARGV[4], 'new message')
end
return { outcome, clock }
