#!lua
-- Append an item to a list if the caller's lease epoch is the newest.
-- KEYS    1 lease, 2 list
-- ARGV    1 epoch, 2 item
-- Reply   1 written, 0 refused
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 0
end
redis.call('RPUSH', KEYS[2], ARGV[2])
return 1
