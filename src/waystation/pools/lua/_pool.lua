-- The pool of a script, from the name of its head; all other keys are made from its tag. Include "now"
-- before it. And the terms, which are the first argument (`Terms.argument`).
--   pool              the tag with its colon
--   at                the time of this call
--   stale_ms, policy, attempts, keys_max, messages_max, bytes_max, dead_max, agent_key_ms,
--   workers_max, taken_max
--                     the terms; bytes_max is nil where there is no bound
--   refusal(new)      nil, or why nothing may be written: `missing` (no such pool, or no more), and for
--                     what brings something new `closed` (it is being deleted)
--   head              after that: the counters of `head` as numbers, and `iterator`; writers change them
--                     and set `head.changed`; head_write() comes at the end
--   text_of(number)   a whole number as text
--   event(words, texts, payload)
--                     adds an event for history: its words, a list of texts, and of an enqueued message
--                     its envelope. events_write() records the events; finish() calls it
local pool = string.sub(KEYS[1], 1, -5)
local at = now()
local words = {}
for word in string.gmatch(ARGV[1], '%S+') do
  words[#words + 1] = word
end
local stale_ms, policy, attempts = tonumber(words[1]), words[2], tonumber(words[3])
local keys_max, messages_max, bytes_max = tonumber(words[4]), tonumber(words[5]), tonumber(words[6])
local dead_max = tonumber(words[7])
local agent_key_ms, workers_max, taken_max = tonumber(words[8]), tonumber(words[9]), tonumber(words[10])
if not taken_max then
  error('the terms of the call cannot be read')
end
-- `former`: the last number of one that had the name before, and was deleted.
local HEAD_COUNTERS = { 'number', 'epoch', 'session', 'version', 'messages', 'bytes', 'dropped', 'former' }
local head = {}
local function text_of(number)
  return string.format('%.0f', number)
end
-- The last two words of the terms are the recording policy and the record log of the slot.
local record_log = words[12]
local events = record_log and redis.call('EXISTS', record_log .. ':head') == 1 and {}
local enqueued = 0
local function event(text, texts, payload)
  if events then
    events[#events + 1] = { text, texts, payload }
    enqueued = enqueued + (payload and 1 or 0)
  end
end
local function events_write()
  -- With `record` none, history counts messages, and nothing else.
  local record = words[11]
  if record == 'n' and #(events or {}) > 0 then
    -- The audit does not look for messages that can have been settled without an event.
    redis.call('HSET', KEYS[1], 'withheld', text_of(head.number))
  end
  local count = record == 'n' and enqueued or events and #events or 0
  if count == 0 then
    return
  end
--- @include "logs/_records"
  local project, name = string.match(pool, '^{p%.([^.}]+)%.([^.}]+)')
  record_write(record_log, record .. record_text(project) .. record_text(name), at, count, function(i)
    local text, texts, payload = unpack(events[i], 1, 3)
    local with_payload = payload and record == 'f'
    local detail = { '\220', two_bytes(#texts + (with_payload and 1 or 0)) }
    for _, each in ipairs(texts) do
      detail[#detail + 1] = record_text(each)
    end
    detail[#detail + 1] = with_payload and record_bytes(payload) or ''
    return record_event(text, table.concat(detail))
  end)
end
local function refusal(new)
  local found = redis.call('HMGET', KEYS[1], 'opened_ms', 'closed', 'iterator', unpack(HEAD_COUNTERS))
  if not found[1] or found[2] then
    return new and found[2] and 'closed' or 'missing'
  end
  head.iterator = found[3] or ''
  for i, field in ipairs(HEAD_COUNTERS) do
    head[field] = tonumber(found[i + 3] or '0')
  end
end
local function head_write()
  if head.changed then
    local fields = { 'iterator', head.iterator }
    for _, field in ipairs(HEAD_COUNTERS) do
      fields[#fields + 1] = field
      fields[#fields + 1] = text_of(head[field])
    end
    redis.call('HSET', KEYS[1], unpack(fields))
  end
end
