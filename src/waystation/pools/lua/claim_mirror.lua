#!lua
-- repeatable
-- Says which pool agents serve: the first that asks, until it is released.
-- KEYS  1 claim
-- ARGV  1 pool, 2 pool that is known to be gone, or ''
-- Reply {pool that has the claim, for how many ms}
--- @include "store/_now"
local at = now()
local holder, since = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%d+)$')
if not holder or holder == ARGV[2] then
  redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', at))
  holder, since = ARGV[1], at
end
return { holder, string.format('%.0f', at - tonumber(since)) }
