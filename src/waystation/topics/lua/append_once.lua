#!lua
-- repeatable
-- Append the messages of a batch that have new ids, all of them or none, and store the ids.
-- If two messages of the batch have the same id, the second one is a duplicate of the first.
-- A second run finds the ids and returns the same positions, marked as duplicates.
--
-- KEYS    1 entries of the partition, 2 its head, 3 its retention holds. The script derives the keys of
--         the ids from 1.
-- ARGV    1 expiry of a stored id in ms, then two per message: id with its scope, packed message
-- Reply   {'appended', position, duplicate, position, duplicate, ...}
--           position   '<offset>-<ms>' of the message, or of the first one with this id
--           duplicate  1 the id was known, 0 the message was appended
--         {'missing', ''}           the partition does not exist
--         {'sealed', next_index}    the partition is sealed; `next_index` is the index of the storage
--                                   topic that continues it
--         {'full', max bytes}       the policy is `refuse`, and trimming did not free enough
-- Errors  'DAMAGED_LOG <key>': see `logs/append`. 'DAMAGED <key>': the entry of an id is no position. A
--         store without free memory rejects the call before it runs
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
local prefix = KEYS[1] .. ':id:'
local fresh, rows, seen = {}, {}, {}
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local place = not seen[id] and redis.call('GET', prefix .. id)
  if place and not string.find(place, '^%d+%-%d+$') then
    error({ err = 'DAMAGED ' .. prefix .. id })
  end
  if place then
    rows[#rows + 1] = { place = place, again = 1 }
  elseif seen[id] then
    rows[#rows + 1] = { index = seen[id], again = 1 }
  else
    fresh[#fresh + 1] = ARGV[i + 1]
    seen[id] = #fresh
    rows[#rows + 1] = { index = #fresh, again = 0, id = id }
  end
end
local first, ms, detail
if #fresh > 0 then
  first, ms, detail = log_append(KEYS[1], now(), fresh)
  if not first then
    return { ms, detail }
  end
end
local reply = { 'appended' }
for _, row in ipairs(rows) do
  local place = row.place or string.format('%.0f-%.0f', first + row.index - 1, ms)
  if row.id then
    redis.call('SET', prefix .. row.id, place, 'PX', ARGV[1])
  end
  reply[#reply + 1] = place
  reply[#reply + 1] = row.again
end
return reply
