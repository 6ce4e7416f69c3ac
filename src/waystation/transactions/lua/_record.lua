-- What happened, in the cell's own log: one entry per script call. Include "cell", "log_trim" and
-- "log_append" before it. ARGV[1] of the script is the terms: data set, ms until what is complete may
-- be archived, ms for which the external id of what is complete stays taken.
--   dataset, archive_ms, external_ms    the terms
--   record(kind, id, head, detail, cause)
--                                       gathers; `head` as head_line left it, `detail` is msgpack or
--                                       '', `cause` a text
--   record_facts(facts, detail)         the same, where the facts are known
--   record_write(at, always)            appends the entry: [1, data set, [[facts, detail], ...]],
--                                       where facts are words: kind, id, version, epoch, state,
--                                       status, cause. Returns the log's end; nil, reason and detail
--                                       where a full log refuses, which it does not with `always`
-- Where the data set is '-' nothing is recorded: what would have been is counted in the log's head.
local dataset, archive_ms, external_ms = string.match(ARGV[1], '^(%S+) (%d+) (%d+)$')
archive_ms, external_ms = tonumber(archive_ms), tonumber(external_ms)
local records, recorded = {}, 0
local function two_bytes(number)
  return string.char(math.floor(number / 256), number % 256)
end
local function record_facts(facts, detail)
  recorded = recorded + 1
  if dataset == '-' then
    return
  end
  records[#records + 1] = '\146\218' .. two_bytes(#facts) .. facts
  records[#records + 1] = (detail or '') == '' and '\192' or detail
end
local function record(kind, id, head, detail, cause)
  if dataset == '-' then
    return record_facts()
  end
  local status = head.status or string.match(head.rest, '^%S+ %S+ (%S+)')
  local facts = kind .. ' ' .. id .. ' ' .. text_of(head.version) .. ' ' .. text_of(head.epoch) .. ' '
    .. head.state .. ' ' .. status
  if cause and #cause > 2000 then
    -- Between letters: a broken one would make the whole entry unreadable.
    cause = string.gsub(string.sub(cause, 1, 2000), '[\192-\255][\128-\191]*$', '')
  end
  if cause and cause ~= '' then
    facts = facts .. ' ' .. cause
  end
  record_facts(facts, detail)
end
local function record_write(at, always)
  if recorded == 0 then
    return redis.call('HGET', KEYS[1] .. ':head', 'end') or '0'
  end
  local log = dataset == '-' and redis.call('HMGET', KEYS[1] .. ':head', 'end', 'sealed')
  if log and log[1] and not log[2] then
    redis.call('HINCRBY', KEYS[1] .. ':head', 'unrecorded', recorded)
    recorded = 0
    return log[1]
  end
  local entry = '\147\1\217' .. string.char(#dataset) .. dataset .. '\220' .. two_bytes(recorded)
    .. table.concat(records)
  local offset, reason, detail = log_append(KEYS[1], at, { entry }, always)
  if not offset and always then
    error('the record log of the cell is ' .. reason)
  elseif not offset then
    return nil, reason, detail
  end
  records, recorded = {}, 0
  return string.format('%.0f', offset + 1)
end
