#!lua flags=allow-oom
-- repeatable
-- Disables an endpoint for all processes, and notes it for the operator; the first cause stays.
-- KEYS  1 disabled, 2 notices (stream)
-- ARGV  1 endpoint, 2 cause and time, 3 notice, 4 notices to keep, 5 wake-up topic of deliverers
-- Reply 1 disabled now, 0 it was already
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 0 then
  return 0
end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'n', ARGV[3])
-- Only a hint: deliverers look again by themselves.
redis.pcall('PUBLISH', ARGV[5], 'disabled')
return 1
