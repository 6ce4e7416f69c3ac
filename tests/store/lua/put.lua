#!lua
-- repeatable
-- Puts an event into a lane that has no gate, as scripts of transactions do.
-- KEYS  1 lane, 2 items, 3 register, 4 failed
-- ARGV  1 item, 2 event
-- Reply 1
--- @include "now"
--- @include "outbox_put"
outbox_put(now(), KEYS, ARGV[1], ARGV[2])
return 1
