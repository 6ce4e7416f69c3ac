#!lua flags=allow-oom
-- repeatable
-- Deletes dead letters.
-- KEYS  1 head
-- ARGV  1 terms, 2 most, 3 failed until when in ms (0: until now), then numbers, or none: all of them
-- Reply {missing}, or {how many, left of those that failed until then, that time}
--- @include "store/_now"
--- @include "_pool"
--- @include "_dead"
local refused = refusal()
if refused then
  return { refused }
end
local done = 0
for _, number in ipairs(dead_chosen()) do
  local removed = dead_remove(number)
  if removed > 0 then
    event('purged ' .. number, {})
  end
  done = done + removed
end
events_write()
return dead_reply(done)
