-- What happened, in the shard's own log: one entry per script call. Include "shard", "log_trim" and
-- "log_append" before it.
--   fact(kind, was, now_at, attempt, verdict, detail)
--                      gathers; `was` and `now_at` are where a message was and is, or the two ends of
--                      a range; `detail` is msgpack or ''
--   record_write(at)   appends the entry: [1, data set, [[facts, detail], ...]], where facts are
--                      words: kind, was, now, epoch, incarnation, attempt, verdict, policy. Returns
--                      the log's end. Never refused for room. Call it before all other writes: a log
--                      that is not there is an error
-- Where the data set is '-' nothing is recorded: what would have been is counted in the log's head.
local facts = {}
local function two_bytes(number)
  return string.char(math.floor(number / 256), number % 256)
end
local function fact(kind, was, now_at, attempt, verdict, detail)
  if dataset == '-' then
    facts[#facts + 1] = ''
    return
  end
  local words = kind .. ' ' .. was .. ' ' .. now_at .. ' ' .. epoch .. ' '
    .. (head.incarnation or incarnation) .. ' ' .. text_of(attempt) .. ' ' .. verdict .. ' ' .. policy
  facts[#facts + 1] = '\146\218' .. two_bytes(#words) .. words
    .. ((detail or '') == '' and '\192' or detail)
end
local function record_write(at)
  if #facts == 0 then
    return redis.call('HGET', KEYS[1] .. ':head', 'end') or '0'
  end
  local log = dataset == '-' and redis.call('HMGET', KEYS[1] .. ':head', 'end', 'sealed')
  if log and log[1] and not log[2] then
    redis.call('HINCRBY', KEYS[1] .. ':head', 'unrecorded', #facts)
    return log[1]
  end
  local entry = '\147\1\217' .. string.char(#dataset) .. dataset .. '\220' .. two_bytes(#facts)
    .. table.concat(facts)
  local offset, reason = log_append(KEYS[1], at, { entry }, true)
  if not offset then
    error('the record log of the shard is ' .. reason)
  end
  return text_of(offset + 1)
end
