#!lua
-- repeatable
-- Puts one item into a lane.
-- KEYS  1 items of the lane
-- ARGV  1 lane, 2 id, 3 item, 4 ms to wait before the first attempt
-- Reply 1 added, 0 it was there
--- @include "now"
--- @include "outbox_add"
return outbox_add(ARGV[1], ARGV[2], ARGV[3], now() + tonumber(ARGV[4])) and 1 or 0
