-- New transactions, for scripts that bring them in. Include before it: log_trim, log_append, cell,
-- due, queue_push, record, counts, sets. What items have in common is one word group, their kind, and
-- is worked out once a call: it is the same string for nearly all of them.
--   ADMIT_WORDS          words of an item: id, kind, external id or '', delay in ms or 0, ms to the
--                        deadline or 0, state, detail, who is to hear of it or ''. A kind is `<node
--                        group> <pipeline> <project> <version> <1 from inside, else 0>`
--   admit_read(from)     the item at ARGV[from]; item.kind has group, pipeline, owner, version, inside
--   admit(item, at)      takes it in: records it, and gathers it
--   admit_write(at)      once, after the record: writes all that was taken in
local ADMIT_WORDS = 8
local kinds, admitted, least, since = {}, {}, {}, nil
local function admit_kind(text)
  local group, pipeline, owner, version, inside =
    string.match(text, '^(%S+) (%S+) (%S+) (%S+) ([01])$')
  local kind = {
    group = group, pipeline = pipeline, owner = owner, version = version, inside = inside == '1',
    list = cell .. 'qInL:' .. group, words = group .. ' in ' .. pipeline .. ' ' .. owner,
    counted = count_name(group, owner, pipeline, 'started')
  }
  kinds[text] = kind
  return kind
end
local function admit_read(from)
  local kind, external = kinds[ARGV[from + 1]] or admit_kind(ARGV[from + 1]), ARGV[from + 2]
  return {
    id = ARGV[from], kind = kind, from = from, state_key = state_key(ARGV[from]), parent = false,
    external = external ~= '' and external,
    key = external ~= '' and cell .. 'externalId:' .. kind.owner .. ':' .. external,
    delay = tonumber(ARGV[from + 3]), deadline = tonumber(ARGV[from + 4]), state = '', line = '',
    reply = ARGV[from + 7] ~= '' and ARGV[from + 7]
  }
end
local function admit(item, at)
  local flags, wake, archive = '-', '0', '-'
  item.state = 'queued'
  if item.external or item.parent or item.deadline > 0 or item.reply then
    flags = (item.external and 'e' or '') .. (item.parent and 'p' or '')
      .. (item.deadline > 0 and 'd' or '') .. (item.reply and 'r' or '')
  end
  if item.delay > 0 then
    item.state, wake, archive = 'scheduled', at + item.delay, 'remove'
  end
  since = since or string.format('%.0f', at)
  item.line = since .. ' ' .. item.state .. ' 1 0 0 ' .. flags .. ' ' .. item.kind.words .. ' - '
    .. wake .. ' - 0 - ' .. archive
  record_facts('started ' .. item.id .. ' 1 0 ' .. item.state .. ' -', ARGV[item.from + 6])
  admitted[#admitted + 1] = item
end
local function due_at(set, ms, id)
  put(set, ms, id)
  least[set] = math.min(least[set] or ms, ms)
end
local function admit_write(at)
  for _, item in ipairs(admitted) do
    local id, key = item.id, item.state_key
    redis.call('HSET', key, 'head', item.line, 'state', ARGV[item.from + 5])
    if item.external then
      redis.call('SET', item.key, id)
      redis.call('HSET', key, 'externalId', item.external)
    end
    if item.parent then
      redis.call('HSET', key, 'parent', item.parent)
    end
    if item.reply then
      redis.call('HSET', key, 'reply', item.reply)
    end
    if item.delay > 0 then
      due_at('sleepingZ', at + item.delay, id)
      put('toArchiveZ', at + archive_ms, id)
    else
      queue_push(item.kind.list, id)
    end
    if item.deadline > 0 then
      due_at('deadlineZ', at + item.deadline, id)
    end
    count(item.kind.counted)
  end
  sets_write()
  queue_write()
  counts_write(at)
  for set, ms in pairs(least) do
    due_hint(set, ms)
  end
end
