#!lua flags=allow-oom
-- repeatable
-- Delete a subscriber and wake its polls, which then report that it does not exist.
-- A second run changes nothing and replies 0.
-- Runs in a full store too, because it frees memory.
--
-- KEYS    1 cursor of the subscriber
-- ARGV    1 pub/sub topic
-- Reply   1    the subscriber was deleted
--         0    it did not exist
-- Errors  none of its own
local deleted = redis.call('DEL', KEYS[1])
if deleted == 1 then
  redis.pcall('PUBLISH', ARGV[1], 'subscriber gone')
end
return deleted
