#!lua
-- A commit as others write them: checks the epoch, then writes.
-- KEYS  1 lease, 2 list
-- ARGV  1 epoch, 2 item
-- Reply 1 written, 0 refused
--- @include "epoch"
if not owned(KEYS[1], ARGV[1]) then
  return 0
end
redis.call('RPUSH', KEYS[2], ARGV[2])
return 1
