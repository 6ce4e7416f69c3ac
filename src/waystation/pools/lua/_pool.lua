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
