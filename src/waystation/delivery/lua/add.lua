#!lua
-- repeatable
-- Puts one item into a lane.
-- KEYS  1 items of the lane
-- ARGV  1 lane, 2 id, 3 item, 4 ms to wait before the first attempt, 5 most items that wait
-- Reply {'added' | 'known' | 'full'}, or {'closed', what its gate says} and nothing was written
--- @include "now"
--- @include "outbox_add"
local lanes = { ARGV[1] }
local closed = outbox_closed(lanes)
if closed then
  return closed
end
local at = now() + tonumber(ARGV[4])
local outcome = outbox_add(lanes, ARGV[2], ARGV[3], at, ARGV[5])
outbox_wake(lanes, at)
return { outcome }
