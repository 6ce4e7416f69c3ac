#!lua
-- repeatable
-- Puts the working copy of a pipeline into a cell, unless a newer one is there.
-- One that is retired leaves its revision: a late writer of an older one must not bring it back.
-- KEYS  1 record log
-- ARGV  1 pipeline, as names of keys have it, 2 revision, 3 active version, or '' when it is retired,
--       4 its definition, 5 '1' if it may be started from outside, 6 '1' if it is paused, then the
--       versions whose definitions stay
-- Reply 1 when it was put, else 0
--- @include "_cell"
local key = cell .. 'pipelineH:' .. ARGV[1]
local known = redis.call('HGET', key, 'revision')
if known and tonumber(known) >= tonumber(ARGV[2]) then
  return 0
end
local stays = {}
for i = 7, #ARGV do
  stays['v:' .. ARGV[i]] = true
end
for _, field in ipairs(redis.call('HKEYS', key)) do
  if string.sub(field, 1, 2) == 'v:' and not stays[field] then
    redis.call('HDEL', key, field)
  end
end
redis.call('HSET', key, 'revision', ARGV[2])
if ARGV[3] == '' then
  redis.call('HDEL', key, 'active', 'type', 'paused')
else
  redis.call('HSET', key, 'active', ARGV[3], 'v:' .. ARGV[3], ARGV[4], 'type', ARGV[5],
    'paused', ARGV[6])
end
return 1
