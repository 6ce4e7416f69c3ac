-- Entries of the record logs that several channels or pools of a slot share. Include this file only
-- where the log exists, because a script creates its functions at each call, and most data sets have
-- no record logs: `if log ~= '' and redis.call('EXISTS', log .. ':head') == 1 then`.
--   record_event(words, detail)    one event: words, and msgpack or nil
--   record_text(text)              text as msgpack
--   record_bytes(bytes)            bytes as msgpack
--   record_write(log, record, at, count, encoded)
--                                  appends events: [1, project, name, [[words, detail], ...]], up to
--                                  1,000 per entry. `record` is the policy and the msgpack of
--                                  project and name; encoded(i) returns an event. With policy `n`
--                                  there is one entry, without names and events. With `-`, the head
--                                  of the log counts the events as unrecorded, and so it does if
--                                  the log is damaged or sealed, because history must not stop the
--                                  work that it records
--- @include "logs/_trim"
--- @include "logs/_append"
local function two_bytes(number)
  return string.char(math.floor(number / 256), number % 256)
end
local function record_text(text)
  return '\218' .. two_bytes(#text) .. text
end
local function record_bytes(bytes)
  return '\198' .. two_bytes(math.floor(#bytes / 65536)) .. two_bytes(#bytes % 65536) .. bytes
end
local function record_event(words, detail)
  return '\146' .. record_text(words) .. (detail or '\192')
end
local function record_write(log, record, at, count, encoded)
  local policy, written = string.sub(record, 1, 1), 0
  local function append(entry, events)
    if not log_append(log, at, { entry }, true) then
      error('the record log is sealed')
    end
    written = written + events
  end
  local function append_all()
    if policy == 'n' then
      return append('\148\1\160\160\144', count)
    end
    for from = 1, count, 1000 do
      local events = {}
      for i = from, math.min(from + 999, count) do
        events[#events + 1] = encoded(i)
      end
      local names = '\148\1' .. string.sub(record, 2) .. '\220' .. two_bytes(#events)
      append(names .. table.concat(events), #events)
    end
  end
  if policy == '-' or not pcall(append_all) then
    redis.pcall('HINCRBY', log .. ':head', 'unrecorded', count - written)
  end
end
