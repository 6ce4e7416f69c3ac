-- The shard of a script, from the name of its record log; all other keys are made from its tag. And
-- the terms, which are the first argument (`Terms.argument`).
--   shard             the tag with its colon
--   dataset, epoch, incarnation, policy, retry_max, dead_max, full_policy
--                     the terms; epoch and incarnation are text, a maximum is nil where there is none
--   refusal(proof)    nil, or why nothing may be written: `missing` (no such shard), `frozen`,
--                     `refused`. Without `proof` the epoch must be the lease's: only a take-over or a
--                     reset ends ownership, whatever the deadline. 'taker': the incarnation must be
--                     the shard's, and the caller looks at tokens. 'anyone': neither
--   head              after that: the counters of `head` as numbers (HEAD_COUNTERS), which writers
--                     change; head_write() writes them if `head.changed`
--   text_of(number)   a whole number as text, made once a call
local shard = string.sub(KEYS[1], 1, -4)
local dataset, epoch, incarnation, policy, retry_max, dead_max, full_policy =
  string.match(ARGV[1], '^(%S+) (%d+) (%d+) (%S+) (%S+) (%S+) (%S+)$')
if not dataset then
  error('the terms of the call cannot be read')
end
retry_max, dead_max = tonumber(retry_max), tonumber(dead_max)
local HEAD_COUNTERS = {
  'y', 'z', 'retry_bytes', 'dead_bytes', 'retry_count', 'dead_count', 'alone', 'dropped', 'orphans',
  'ended'
}
local head = {}
local texts = {}
local function text_of(number)
  local text = texts[number]
  if not text then
    text = string.format('%.0f', number)
    texts[number] = text
  end
  return text
end
local function refusal(proof)
  local found = redis.call('HMGET', shard .. 'head', 'incarnation', 'frozen', unpack(HEAD_COUNTERS))
  if not found[1] then
    return 'missing'
  elseif found[2] then
    return 'frozen'
  elseif proof == 'taker' and found[1] ~= incarnation then
    return 'refused'
  elseif not proof and redis.call('HGET', shard .. 'lease', 'epoch') ~= epoch then
    return 'refused'
  end
  head.incarnation = found[1]
  for i, field in ipairs(HEAD_COUNTERS) do
    head[field] = tonumber(found[i + 2] or '0')
  end
end
local function head_write()
  if head.changed then
    local words = {}
    for _, field in ipairs(HEAD_COUNTERS) do
      words[#words + 1] = field
      words[#words + 1] = text_of(head[field])
    end
    redis.call('HSET', shard .. 'head', unpack(words))
  end
end
