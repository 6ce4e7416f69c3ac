#!lua
-- repeatable
-- Appends the messages of a batch whose ids are not remembered, all of them or nothing.
-- KEYS  1 log, 2 its head, 3 its holds
-- ARGV  1 how long an id is remembered in ms, then for each message: id within its scope, payload
-- Reply {'appended', then for each message: `<offset>-<ms>`, 1 for a duplicate | 0}, or
--       {'missing' | 'sealed' | 'full', what follows | most bytes}
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
local prefix = KEYS[1] .. ':id:'
local fresh, rows, seen = {}, {}, {}
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local place = not seen[id] and redis.call('GET', prefix .. id)
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
