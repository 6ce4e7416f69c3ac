#!lua flags=no-writes
-- repeatable
-- A page of what a group has in retry or among dead letters, in order; about 1 MiB at most.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone), 2 group, 3 retry | dead, 4 number to go on behind, or 0, 5 most
-- Reply {missing}, or {entry or '', ms of the head's failure or '0', 1 if there is more, then number,
--       record, ...}
--- @include "_shard"
--- @include "_entry"
--- @include "_queue"
--- @include "_heads"
if redis.call('EXISTS', shard .. 'head') == 0 then
  return { 'missing' }
end
local group, which, behind = ARGV[2], ARGV[3], tonumber(ARGV[4])
local entry = entry_read(group)
if not entry or entry[which].n == 0 then
  return { entry and entry_line(entry) or '', '0', 0 }
end
local links, queue, bytes = shard .. COUNTERS[which].links, entry[which], 0
local failed = redis.call('ZSCORE', shard .. 'failed', failed_name(entry.dead.h, group)) or '0'
-- Numbers of a group only rise: what was settled since then is below its head.
local number = queue.h
if behind >= queue.h then
  number = behind < queue.p and tonumber(redis.call('HGET', links, text_of(behind)) or nil)
end
local reply = { entry_line(entry), failed, 0 }
while number and #reply < 3 + 2 * tonumber(ARGV[5]) and bytes < 1048576 do
  local record = record_of(which, number)
  if record then
    reply[#reply + 1] = text_of(number)
    reply[#reply + 1] = record
    bytes = bytes + #record
  end
  number = number < queue.p and tonumber(redis.call('HGET', links, text_of(number)) or nil)
end
reply[3] = number and 1 or 0
return reply
