#!lua
-- repeatable
-- Create a subscriber that reads the messages published from now on, or after a given clock.
-- If the subscriber exists, only its expiry starts again.
-- A second run therefore keeps the cursor and replies `kept`.
--
-- KEYS    1 clock of the channel, 2 cursor of the subscriber
-- ARGV    1 expiry in seconds, 2 clock after which a new subscriber reads; empty: the newest
-- Reply   'created' | 'kept'
-- Errors  DAMAGED <key>, nothing written: the clock or the cursor is not an integer
--- @include "_clock"
local ttl = ARGV[1]
local clock, cursor = read_clocks()
if not clock then
  clock = 0
  redis.call('SET', KEYS[1], '0', 'EX', ttl)
else
  redis.call('EXPIRE', KEYS[1], ttl, 'GT')
end
if cursor then
  redis.call('EXPIRE', KEYS[2], ttl)
  return 'kept'
end
redis.call('SET', KEYS[2], ARGV[2] == '' and text(clock) or ARGV[2], 'EX', ttl)
return 'created'
