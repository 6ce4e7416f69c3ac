#!lua
-- repeatable
-- Put an event into an outbox queue that has no gate, as scripts of transactions do.
-- KEYS    1 queue, 2 items, 3 register, 4 failed
-- ARGV    1 item, 2 event
-- Reply   1
--- @include "store/_now"
--- @include "delivery/_put"
outbox_put(now(), KEYS, ARGV[1], ARGV[2])
return 1
