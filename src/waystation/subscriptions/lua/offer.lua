#!lua
-- repeatable
-- Offers messages to other workers, and tells what came of those that they have settled.
-- KEYS  1 record log
-- ARGV  1 terms, 2 most that may wait to be taken, 3 how many endings the owner has seen since ever,
--       then members: main positions, or heads that the owner has taken
-- Reply {refused | frozen | missing}, or {how many wait, endings before those told, ending, ...}
--- @include "_shard"
--- @include "_acks"
local refused = refusal()
if refused then
  return { refused }
end
local ready, members, waiting, offsets = shard .. 'ready', {}, {}, {}
for _, member in ipairs(redis.call('LRANGE', ready, 0, -1)) do
  waiting[member] = true
end
local count = redis.call('LLEN', ready)
for i = 4, #ARGV do
  members[#members + 1] = ARGV[i]
  local place, offset = string.match(ARGV[i], '^m(%d+%.%d+)%.(%d+)$')
  if place then
    offsets[place] = offsets[place] or {}
    table.insert(offsets[place], offset)
  end
end
acks_read(offsets)
local scores = #members > 0 and redis.call('ZMSCORE', shard .. 'taken', unpack(members)) or {}
for i, member in ipairs(members) do
  local place, offset = string.match(member, '^m(%d+%.%d+)%.(%d+)$')
  -- A head is offered by who has taken it: one that is gone from there was settled.
  local own = not place and scores[i] and tonumber(scores[i]) < 0
  local open = place and not scores[i] and not acked(place, tonumber(offset))
  if (own or open) and not waiting[member] and count < tonumber(ARGV[2]) then
    redis.call('RPUSH', ready, member)
    if own then
      redis.call('ZREM', shard .. 'taken', member)
    end
    waiting[member], count = true, count + 1
  end
end
local seen = tonumber(ARGV[3])
if seen > head.ended then
  redis.call('LTRIM', shard .. 'ended', seen - head.ended, -1)
  head.ended, head.changed = seen, true
  head_write()
end
local reply = { count, head.ended }
for _, ending in ipairs(redis.call('LRANGE', shard .. 'ended', 0, 499)) do
  reply[#reply + 1] = ending
end
return reply
