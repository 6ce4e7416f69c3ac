-- Events of channels; "logs/_records" describes their entries.
--   published(clock, ttl, body, record)    a stored message, which expires after `ttl` seconds. With
--                                          policy `h` the event has the id instead of the body
--   dropped(first, last)                   messages that the backlog limit deleted, by their clocks
--- @include "store/_now"
--- @include "logs/_records"
local function published(clock, ttl, body, record)
  local facts = 'published ' .. clock .. ' ' .. ttl
  if string.sub(record, 1, 1) == 'f' then
    return record_fact(facts, record_bytes(body))
  end
  return record_fact(facts, record_text(string.match(body, '^{"id":"([^"]*)"') or ''))
end
local function dropped(first, last)
  return record_fact('dropped ' .. first .. ' ' .. last)
end
