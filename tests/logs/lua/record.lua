#!lua
-- A commit of another unit, as shards and cells write them: its own state, and a record of it.
-- KEYS  1 state of the unit, 2 its log, 3 head of that, 4 its holds
-- ARGV  1 position, 2 record
-- Reply {'appended', offset, ms}, or {'missing' | 'sealed' | 'full', detail} and nothing is written
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
local offset, ms, detail = log_append(KEYS[2], now(), { ARGV[2] })
if not offset then
  return { ms, detail }
end
redis.call('HSET', KEYS[1], 'position', ARGV[1])
return { 'appended', offset, ms }
