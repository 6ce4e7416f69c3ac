#!lua
-- repeatable
-- Publish one message and add it to the outbox queues of the channel's webhooks.
-- Does what publish_many does for one message without a backlog limit, in half the time.
-- A second run finds the id and replies `duplicate`.
--
-- KEYS    1 clock of the channel, 2 deduplication entry of the message id
-- ARGV    1 prefix of message keys, 2 body, which is also the outbox item, 3 expiry in seconds,
--         4 pub/sub topic, 5 record log or '', 6 policy and names for its entries,
--         7 name of the item, 8 maximum number of items in a queue, then the queues
-- Reply   {'accepted', clock of the message}
--         {'duplicate', clock of the first message with this id}; its body is unchanged
--         {'closed', state of each queue's gate}: nothing was written; open the queues and repeat
-- Errors  DAMAGED <key>, nothing written: the clock or the entry is not an integer
--- @include "_append_message"
local first_lane, last_lane = 9, #ARGV
--- @include "delivery/_check_gates"
local outcome, clock = append_message(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if outcome == 'accepted' then
  local item_name, item, waiting_max = ARGV[7], ARGV[2], tonumber(ARGV[8])
--- @include "delivery/_add"
  -- pcall, because a store user without permission to publish must not fail after the writes.
  redis.pcall('PUBLISH', ARGV[4], 'new message')
  if ARGV[5] ~= '' and redis.call('EXISTS', ARGV[5] .. ':head') == 1 then
--- @include "_record"
    record_write(ARGV[5], ARGV[6], now(), 1, function()
      return published(clock, ARGV[3], ARGV[2], ARGV[6])
    end)
  end
end
return { outcome, clock }
