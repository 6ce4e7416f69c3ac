#!lua flags=no-writes
-- repeatable
-- Tells how a group is, at one moment.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone), 2 group
-- Reply {missing}, or {''} for a clean group, or {entry, due ms or '0', 1 if somebody has the head, ms
--       of its failure or '0', record}
--- @include "_shard"
--- @include "_entry"
--- @include "_heads"
if redis.call('EXISTS', shard .. 'head') == 0 then
  return { 'missing' }
end
local entry = entry_read(ARGV[2])
if not entry then
  return { '' }
end
local member, which, number = head_name(entry)
local taken = redis.call('ZSCORE', shard .. 'taken', member) or redis.call('LPOS', shard .. 'ready', member)
return {
  entry_line(entry), redis.call('ZSCORE', shard .. 'due', member) or '0', taken and 1 or 0,
  redis.call('ZSCORE', shard .. 'failed', failed_name(number, ARGV[2])) or '0',
  redis.call('HGET', shard .. which, text_of(number)) or ''
}
