#!lua flags=allow-oom
-- repeatable
-- Deletes a subscriber and wakes its polls, which then find it gone.
-- KEYS  1 cursor of the subscriber
-- ARGV  1 wake-up topic
-- Reply number of subscribers deleted
local deleted = redis.call('DEL', KEYS[1])
if deleted == 1 then
  redis.pcall('PUBLISH', ARGV[1], 'subscriber gone')
end
return deleted
