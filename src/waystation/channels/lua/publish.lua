#!lua
-- repeatable
-- Publish one message, unless the channel has a message with the same id.
-- A second run finds the id and replies `duplicate`.
--
-- KEYS    1 clock of the channel, 2 deduplication entry of the message id
-- ARGV    1 prefix of message keys, 2 body, 3 expiry in seconds, 4 pub/sub topic,
--         5 record log or '', 6 policy and names for its entries
-- Reply   {'accepted', clock of the message}
--         {'duplicate', clock of the first message with this id}; its body is unchanged
-- Errors  DAMAGED <key>, nothing written: the clock or the entry is not an integer
--- @include "_append_message"
local outcome, clock = append_message(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if outcome == 'accepted' then
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
