#!lua flags=no-writes
-- repeatable
-- Find messages of a channel by their clocks.
--
-- KEYS    1 clock of the channel
-- ARGV    1 prefix of message keys, then clocks
-- Reply   {time of the store in ms, clock of the channel or '', then per message: 1 | 0}
-- Errors  none of its own
--- @include "store/_now"
local clock = redis.pcall('GET', KEYS[1])
local reply = { now(), type(clock) == 'string' and clock or '' }
for i = 2, #ARGV do
  reply[#reply + 1] = redis.call('EXISTS', ARGV[1] .. ARGV[i])
end
return reply
