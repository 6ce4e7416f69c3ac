#!lua flags=allow-oom
-- repeatable
-- Puts a message into the retry set, in the place of the member that it was; or takes that off.
-- Of two who had claimed the same member, the second finds it gone and changes nothing.
-- KEYS  1 retry set
-- ARGV  1 member that it was (empty: it comes from elsewhere), 2 member that it is (empty: it is
--       done), 3 ms until it is due
-- Reply 1, or 0 where it was settled before
--- @include "store/_now"
local at = now()
if ARGV[1] ~= '' and redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  return 0
end
if ARGV[2] ~= '' then
  redis.call('ZADD', KEYS[1], string.format('%.3f', (at + tonumber(ARGV[3])) / 1000), ARGV[2])
end
return 1
