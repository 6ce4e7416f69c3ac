-- Entries of groups, kept for the call; "entry_write" writes them. Include "shard" before it. A clean
-- group has none.
--   entries_read(groups)   reads those that are not known yet, by one call
--   entry_read(group)      a table, or nil for a clean group: `retry` and `dead`, each with p (last
--                          number pushed), c (last settled), h (head) and n (how many); tries (of the
--                          head), upto (math.huge: without end), operation ('0': none)
--   entry_make(group)      the same, a new one for a clean group; it will be written
--   state_of(group)        clean, retrying, parked or redriving
local entries = {}
local function entry_blank()
  return {
    retry = { p = 0, c = 0, h = 0, n = 0 }, dead = { p = 0, c = 0, h = 0, n = 0 },
    tries = 0, upto = 0, operation = '0'
  }
end
local function entry_parse(line)
  local words = {}
  for word in string.gmatch(line, '%S+') do
    words[#words + 1] = tonumber(word) or word
  end
  return {
    retry = { p = words[1], c = words[2], h = words[3], n = words[4] },
    dead = { p = words[5], c = words[6], h = words[7], n = words[8] },
    tries = words[9], upto = words[10] == '-' and math.huge or words[10],
    operation = string.match(line, '%S+$'), stored = true
  }
end
local function entries_read(groups)
  local missing = {}
  for _, group in ipairs(groups) do
    if not entries[group] then
      entries[group] = entry_blank()
      missing[#missing + 1] = group
    end
  end
  if #missing > 0 then
    for i, line in ipairs(redis.call('HMGET', shard .. 'groups', unpack(missing))) do
      if line then
        entries[missing[i]] = entry_parse(line)
      end
    end
  end
end
local function entry_is_clean(entry)
  return entry.retry.n == 0 and entry.dead.n == 0
end
local function entry_read(group)
  entries_read({ group })
  return not entry_is_clean(entries[group]) and entries[group] or nil
end
local function entry_make(group)
  local entry = entry_read(group)
  if not entry then
    -- What a group left behind that was clean meanwhile counts for nothing.
    entry = entry_blank()
    entry.stored = entries[group].stored
    entries[group] = entry
  end
  entry.changed = true
  return entry
end
local function state_of(group)
  local entry = entries[group]
  if not entry or entry_is_clean(entry) then
    return 'clean'
  elseif entry.dead.n > 0 and entry.upto > 0 then
    return 'redriving'
  end
  return entry.retry.n > 0 and 'retrying' or 'parked'
end
local function entry_line(entry)
  local retry, dead, words = entry.retry, entry.dead, {}
  local numbers = { retry.p, retry.c, retry.h, retry.n, dead.p, dead.c, dead.h, dead.n, entry.tries }
  for i, number in ipairs(numbers) do
    words[i] = text_of(number)
  end
  words[10] = entry.upto == math.huge and '-' or text_of(entry.upto)
  words[11] = entry.operation
  return table.concat(words, ' ')
end
