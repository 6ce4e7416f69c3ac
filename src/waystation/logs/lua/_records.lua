-- Entries of the record logs that several channels or pools of a slot share. Include this file only
-- where the log exists, because a script creates its functions at each call, and most data sets have
-- no record logs: `if log ~= '' and redis.call('EXISTS', log .. ':head') == 1 then`.
--   record_fact(facts, detail)    one event: words, and msgpack or nil
--   record_text(text)             text as msgpack
--   record_write(log, record, at, events)
--                                 appends one entry: [1, project, name, [[facts, detail], ...]].
--                                 `record` is the policy and the msgpack of project and name. With
--                                 policy `n` the entry has no names and no events. With `-`, the
--                                 head of the log counts the events as unrecorded, and so it does
--                                 if the log is damaged or sealed, because history must not stop
--                                 the work that it records
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
local function record_fact(facts, detail)
  return '\146' .. record_text(facts) .. (detail or '\192')
end
local function record_write(log, record, at, events)
  local policy, done, offset = string.sub(record, 1, 1), false, nil
  if policy ~= '-' then
    local entry = '\148\1\160\160\144'
    if policy ~= 'n' then
      entry = '\148\1' .. string.sub(record, 2) .. '\220' .. two_bytes(#events) .. table.concat(events)
    end
    done, offset = pcall(log_append, log, at, { entry }, true)
  end
  if not (done and offset) then
    redis.pcall('HINCRBY', log .. ':head', 'unrecorded', #events)
  end
end
