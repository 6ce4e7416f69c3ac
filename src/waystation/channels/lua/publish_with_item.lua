#!lua
-- repeatable
-- Publishes one message, unless a message of the same id is remembered, with what is to be sent for it.
-- What publish_many does for one message without a bound of the backlog, in half the time.
-- KEYS  1 clock of the channel, 2 deduplication entry of the message
-- ARGV  1 prefix of message keys, 2 body, which is the item too, 3 TTL in seconds, 4 wake-up topic,
--       5 name of the item, 6 most items that wait in a lane, then the lanes
-- Reply {'accepted' | 'duplicate', clock of the message},
--       or {'closed', what the gate of each lane says} and nothing was written
--- @include "_append_message"
local first_lane, last_lane = 7, #ARGV
--- @include "delivery/_check_gates"
local outcome, clock = append(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if outcome == 'accepted' then
  local item_name, item, waiting_max = ARGV[5], ARGV[2], tonumber(ARGV[6])
--- @include "delivery/_add"
  -- Only a hint: a user of the store who may not publish must not fail after the writes above.
  redis.pcall('PUBLISH', ARGV[4], 'new message')
end
return { outcome, clock }
