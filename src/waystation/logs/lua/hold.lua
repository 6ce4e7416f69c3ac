#!lua flags=allow-oom
-- repeatable
-- Set the retention hold of a reader: the offset of the first message that the reader still needs.
-- A hold can move in both directions, between the first and the end offset. A call of an earlier
-- incarnation of the reader changes nothing, because the call may arrive late.
-- A second run sets the same hold again.
-- Runs in a full store too, because holds that advance let trimming free memory.
--
-- KEYS    1 head of the partition, 2 its retention holds
-- ARGV    1 reader, 2 offset, 3 incarnation of the reader; 0: the reader has no incarnations
-- Reply   {1}                             the hold is set, or a later incarnation owns it
--         {0}                             the partition does not exist
--         {'range', first, end}           the offset is outside of the partition
-- Errors  'DAMAGED_LOG <key>': a number of the head is no integer
--- @include "_integer"
local state = redis.call('HMGET', KEYS[1], 'first', 'end')
if not state[1] then
  return { 0 }
end
local offset = tonumber(ARGV[2])
if offset < log_integer(state[1], KEYS[1]) or offset > log_integer(state[2], KEYS[1]) then
  return { 'range', state[1], state[2] }
end
local present = string.match(redis.call('HGET', KEYS[2], ARGV[1]) or '', ' (%d+)$') or '0'
if tonumber(ARGV[3]) >= tonumber(present) then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. (ARGV[3] == '0' and '' or ' ' .. ARGV[3]))
end
return { 1 }
