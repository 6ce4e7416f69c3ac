#!lua
-- repeatable
-- Creates a subscriber that sees what is published from now on, or goes on where it had been.
-- One that exists is kept alive.
-- KEYS  1 clock of the channel, 2 cursor of the subscriber
-- ARGV  1 TTL in seconds, 2 clock after which a new one begins to read; empty: now
-- Reply 'created' | 'kept'
local ttl = ARGV[1]
local clock = redis.call('GET', KEYS[1])
if not clock then
  clock = '0'
  redis.call('SET', KEYS[1], clock, 'EX', ttl)
else
  redis.call('EXPIRE', KEYS[1], ttl, 'GT')
end
local place = ARGV[2] == '' and clock or ARGV[2]
if redis.call('SET', KEYS[2], place, 'NX', 'EX', ttl) then
  return 'created'
end
redis.call('EXPIRE', KEYS[2], ttl)
return 'kept'
