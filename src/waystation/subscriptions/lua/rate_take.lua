#!lua flags=allow-oom
-- repeatable
-- Takes permits from the bucket of a rate that all shards of a subscription share.
-- A repetition after a lost reply takes again, so that less is sent, never more.
-- KEYS  1 bucket: the time up to which permits were taken, in ms of the store's clock
-- ARGV  1 permits a second, 2 most that are wanted, 3 most that the bucket holds
-- Reply {permits, ms until there is one if there is none}
--- @include "store/_now"
local at, each, taken = now(), 1000 / tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or nil)
-- A new bucket has one permit. So has one from which a store whose clock was ahead has taken.
local since = each
if taken and taken <= at + each then
  since = math.min(at - taken, tonumber(ARGV[3]) * each)
end
-- A thousandth early, because a time in ms as a number is exact to 0.0003 ms only: a permit that is
-- whole but for that must not be withheld. What was taken counts whole, so nothing is gained.
local permits = math.min(tonumber(ARGV[2]), math.floor(since / each + 0.001))
if permits < 1 then
  return { 0, math.max(1, math.ceil(each - since)) }
end
local full_ms = math.ceil(1000 + (tonumber(ARGV[3]) + 1) * each)
redis.call('SET', KEYS[1], string.format('%.4f', at - since + permits * each), 'PX',
  string.format('%.0f', full_ms))
return { permits, 0 }
