#!lua flags=allow-oom
-- Removes a bounded number of the oldest messages that retention lets go.
-- KEYS  1 log, 2 its head, 3 its holds
-- ARGV  1 most messages of this step
-- Reply {messages removed, 1 when another step would find something}, {} when there is no such log
--- @include "now"
local state = redis.call(
  'HMGET', KEYS[2], 'first', 'end', 'bytes', 'max_bytes', 'max_age_ms', 'policy', 'dropped'
)
if not state[1] then
  return {}
end
local first, finish, bytes = tonumber(state[1]), tonumber(state[2]), tonumber(state[3])
local max_bytes = tonumber(state[4] or nil)
local oldest = state[5] and now() - tonumber(state[5])
local held = finish
for _, offset in ipairs(redis.call('HVALS', KEYS[3])) do
  held = math.min(held, tonumber(offset))
end
-- Who drops, drops what is needed too; age alone never does that.
local drops = state[6] == 'drop_and_count'

local most = tonumber(ARGV[1])
local entries = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', most)
local removed, lost, more = 0, 0, false
for _, entry in ipairs(entries) do
  local ms = tonumber(string.match(entry[1], '-(%d+)$'))
  local heavy = max_bytes and bytes > max_bytes
  local old = oldest and ms < oldest
  local needed = first + removed >= held
  if not (heavy or old) or (needed and not (drops and heavy)) then
    break
  end
  if needed then
    lost = lost + 1
  end
  bytes = bytes - #entry[2][2]
  removed = removed + 1
end
if removed == 0 then
  return { 0, 0 }
end
first = first + removed
redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f', first))
redis.call(
  'HSET', KEYS[2], 'first', string.format('%.0f', first), 'bytes', string.format('%.0f', bytes),
  'dropped', string.format('%.0f', tonumber(state[7]) + lost)
)
return { removed, removed == most and 1 or 0 }
