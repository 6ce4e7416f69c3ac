#!lua flags=allow-oom
-- repeatable
-- Reads transactions, and where they are.
-- KEYS  1 record log
-- ARGV  1 owner or '' for any, 2 how far into a list to look for a place, then ids
-- Reply per id: {} for one that is unknown, or {times, place, field, value, field, value, ...}; times
--       are the scores in processingZ, leaseZ, sleepingZ, deadlineZ, toArchiveZ, '' where there is
--       none; the place in its list is from 0, -1 in none, or too far behind
--- @include "cell"
--- @include "head"
local SETS = { 'processingZ', 'leaseZ', 'sleepingZ', 'deadlineZ', 'toArchiveZ' }
local reply = {}
for i = 3, #ARGV do
  local id, most = ARGV[i], tonumber(ARGV[2])
  local fields = redis.call('HGETALL', state_key(id))
  local line
  for j = 1, #fields, 2 do
    line = fields[j] == 'head' and fields[j + 1] or line
  end
  local head, one = line and head_rest(head_read(line)), {}
  if head and (ARGV[1] == '' or head.owner == ARGV[1]) then
    local times, place = {}, false
    for j, set in ipairs(SETS) do
      times[j] = redis.call('ZSCORE', cell .. set, id) or ''
    end
    if most > 0 and head.state == 'queued' then
      local list = (head.queue == 'out' and 'qOutL:' or 'qInL:') .. head.group
      place = redis.call('LPOS', cell .. list, id, 'MAXLEN', most)
    elseif most > 0 and head.state == 'held' then
      local list = 'holdL:' .. pipeline_key(head.owner, head.pipeline)
      place = redis.call('LPOS', cell .. list, id, 'MAXLEN', most)
    end
    one = { times, place or -1 }
    for j = 1, #fields do
      one[j + 2] = fields[j]
    end
  end
  reply[#reply + 1] = one
end
return reply
