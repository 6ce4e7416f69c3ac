#!lua flags=allow-oom
-- repeatable
-- Puts dead letters to the ends of their keys' lists again, as new messages. What finds no room stays.
-- KEYS  1 head
-- ARGV  1 terms, 2 most, 3 failed until when in ms (0: until now), then numbers, or none: all of them
-- Reply {missing | closed | full}, or {how many, left of those that failed until then, that time}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
--- @include "_pick"
--- @include "_heads"
--- @include "_moves"
--- @include "_appending"
--- @include "_dead"
local refused = refusal(true)
if refused then
  return { refused }
end
local done, full = 0, false
for _, number in ipairs(dead_chosen()) do
  local _, _, _, key, _, packed = dead_read(number)
  full = full or (key and is_full(key, packed))
  if not full then
    dead_remove(number)
    if key then
      append(key, packed)
      event('redriven ' .. number .. ' ' .. text_of(head.number), { key }, packed)
      done = done + 1
    end
  end
end
if full and done == 0 then
  return { 'full' }
end
finish()
return dead_reply(done)
