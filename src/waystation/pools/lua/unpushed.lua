#!lua flags=no-writes
-- repeatable
-- The next messages of a key that an agent's list does not have, in their order.
-- KEYS  1 head
-- ARGV  1 terms, 2 recipient key, 3 last number that the list has got, 4 most, 5 bytes at most
-- Reply {missing}, or {ok, then per message: number, envelope}; empty also for a key that nobody has
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
--- @include "_places"
local refused = refusal()
if refused then
  return { refused }
end
local key, bytes_left, reply = ARGV[2], tonumber(ARGV[5]), { 'ok' }
local entry = entry_read(key)
if not entry or entry.owner == '-' then
  return reply
end
local from = place_above(key, 0, tonumber(ARGV[3]))
for place = from, from + tonumber(ARGV[4]) - 1 do
  local number, _, packed = message_at(key, place)
  if not number or (#reply > 1 and #packed > bytes_left) then
    break
  end
  bytes_left = bytes_left - #packed
  reply[#reply + 1] = number
  reply[#reply + 1] = packed
end
return reply
