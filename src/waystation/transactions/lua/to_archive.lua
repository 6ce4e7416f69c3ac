#!lua flags=allow-oom
-- repeatable
-- Confirms what the archive has, then gives whoever has the role what is due.
-- Nothing that is given out is taken off the schedule: that is for its confirm.
-- KEYS  1 record log
-- ARGV  1 terms, 2 node, 3 most (0: nothing is asked for), 4 how many of the first to pass over, 5 bytes
--       after which no more is given, 6 ms of the role, 7 ms until another may have it, 8 ms for which
--       the store keeps what is complete and archived, 9 'idle', 'leave' or '', see "archive_role";
--       then per confirm: id, version, ms of the read, version of the archive if that is higher or 0,
--       why it was refused or ''
-- Reply {role, ms until it changes, now, number scheduled, when the first is due or '', number set
--       aside, then of each: id, its fields}
--- @include "now"
--- @include "log_trim"
--- @include "log_append"
--- @include "cell"
--- @include "head"
--- @include "record"
--- @include "counts"
--- @include "sets"
--- @include "archive_role"
--- @include "archive_confirm"
local HEAD = '^%d+ [^ ]+ %d+ %d+ %d+ ' .. string.rep('[^ ]+ ', 10) .. '[^ ]+$'
local at, bytes, given = now(), 0, {}
local most, bytes_max = tonumber(ARGV[3]), tonumber(ARGV[5])

-- Why a state cannot be archived as it is; nil if it can.
local function flaw(fields)
  if fields.err then
    return 'it is no hash'
  end
  local line, packed
  for i = 1, #fields, 2 do
    bytes = bytes + #fields[i] + #fields[i + 1]
    line = fields[i] == 'head' and fields[i + 1] or line
    packed = packed or fields[i] == 'state'
  end
  if not line or not string.find(line, HEAD) then
    return 'its head cannot be read'
  end
  return not packed and 'it has no field state' or nil
end

for i = 10, #ARGV, 5 do
  confirm(
    ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), ARGV[i + 4], at,
    ARGV[8]
  )
end
confirm_write()
sets_write()
local mine, wait = role(ARGV[2], at, tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[9])
if mine == 'archiver' and most > 0 then
  local due = { '-inf', at, 'BYSCORE', 'LIMIT', ARGV[4], most }
  for _, id in ipairs(redis.call('ZRANGE', cell .. 'toArchiveZ', unpack(due))) do
    local fields = redis.pcall('HGETALL', state_key(id))
    if not fields.err and #fields == 0 then
      settled(id)
      count('archive:::no-state')
    else
      local why = flaw(fields)
      if why then
        set_aside(id, at, why)
      else
        given[#given + 1], given[#given + 2] = id, fields
      end
    end
    if bytes >= bytes_max then
      break
    end
  end
  confirm_write()
  sets_write()
end
counts_write(at)
record_write(at, true)
local first = redis.call('ZRANGE', cell .. 'toArchiveZ', 0, 0, 'WITHSCORES')[2] or ''
return {
  mine, string.format('%.0f', wait), string.format('%.0f', at),
  redis.call('ZCARD', cell .. 'toArchiveZ'), first, redis.call('HLEN', FAILED), unpack(given)
}
