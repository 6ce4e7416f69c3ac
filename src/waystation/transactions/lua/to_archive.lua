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
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_archive_role"
--- @include "_archive_confirm"
local at, bytes, given = now(), 0, {}
local most, bytes_max = tonumber(ARGV[3]), tonumber(ARGV[5])

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
    if fields.err then
      set_aside(id, at, 'it is no hash')
    elseif #fields == 0 then
      settled(id)
      count('archive:::no-state')
    else
      -- Whether it is a state is for the archiver to see, which has to read it anyway.
      for i = 2, #fields, 2 do
        bytes = bytes + #fields[i]
      end
      given[#given + 1], given[#given + 2] = id, fields
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
