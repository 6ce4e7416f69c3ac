-- Events of channels; "logs/_records" describes their entries.
--   published(clock, ttl, body, record)    a stored message, which expires after `ttl` seconds. With
--                                          policy `h` the event has the id instead of the body
--- @include "store/_now"
--- @include "logs/_records"
local function published(clock, ttl, body, record)
  local words = 'published ' .. clock .. ' ' .. ttl
  if string.sub(record, 1, 1) == 'f' then
    return record_event(words, record_bytes(body))
  end
  return record_event(words, record_text(string.match(body, '^{"id":"([^"]*)"') or ''))
end
