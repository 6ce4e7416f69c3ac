#!lua flags=no-writes
-- repeatable
-- A page of dead letters, heads of groups and those that stand alone, the oldest failure first.
-- About 1 MiB at most.
-- KEYS  1 record log
-- ARGV  1 terms (those of anyone), 2 failed from this time on, 3 and before this or 0, 4 cursor, 5 most
-- Reply {missing}, or {cursor or '' at the end, then name, ms, entry or '', record, ...}
--- @include "_shard"
--- @include "_failed_page"
if redis.call('EXISTS', shard .. 'head') == 0 then
  return { 'missing' }
end
local most, bytes, groups, lines, reply = tonumber(ARGV[5]), 0, {}, {}, { '' }
local items = failed_page(tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], most)
for _, item in ipairs(items) do
  groups[#groups + 1] = item.group
end
-- As they are stored: whoever asked reads them.
for i, line in ipairs(#groups > 0 and redis.call('HMGET', shard .. 'groups', unpack(groups)) or {}) do
  lines[groups[i]] = line
end
for i, item in ipairs(items) do
  local record = redis.call('HGET', shard .. 'dead', text_of(item.number))
  local line = not item.group and '' or lines[item.group]
  if record and line then
    reply[#reply + 1] = item.name
    reply[#reply + 1] = text_of(item.ms)
    reply[#reply + 1] = line
    reply[#reply + 1] = record
    bytes = bytes + #record
  end
  reply[1] = (i < #items or #items == most) and cursor_of(item) or ''
  if bytes >= 1048576 then
    break
  end
end
return reply
