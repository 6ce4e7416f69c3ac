#!lua flags=allow-oom
-- repeatable
-- Settles messages: acknowledges, pushes, drops and records, all in one.
-- Also in a full store: it is what makes room.
-- KEYS  1 record log
-- ARGV  1 terms (epoch 0: a taker, whose items all have tokens), 2 number of the owner's call (0: no
--       next heads are wanted), then per item: member, token or '-', group or '', verdict, wait in ms
--       (of `late`: when it is due), record or '', detail
-- Reply {refused | frozen | missing}, or {log end, retry bytes, dead bytes, then per item outcome
--       (done, known, lease_lost), state of the group, member and record of the next head or '', ''}
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_shard"
--- @include "_entry"
--- @include "_entry_write"
--- @include "_queue"
--- @include "_queue_write"
--- @include "_heads"
--- @include "_heads_write"
--- @include "_acks"
--- @include "_acks_write"
--- @include "_record"
--- @include "_follow_on"
--- @include "_items"
--- @include "_moves"
--- @include "_settle"
--- @include "_dead_room"
local call, items = tonumber(ARGV[2]), items_read(3)
local refused = refusal(epoch == '0' and 'taker' or nil)
if refused then
  return { refused }
end
local at, reply, room, told, given_back = now(), { '0', '0', '0' }, 4194304, {}, {}
items_load(items)

local function next_of(member, which, number)
  local record = member and not told[member] and record_of(which, number)
  if not record then
    return '', ''
  end
  told[member], room = true, room - #record
  return member, record
end

for _, item in ipairs(items) do
  local outcome, member, record = outcome_of(item), '', ''
  if not outcome then
    outcome = 'done'
    member, record = next_of(settle(item, at, call > 0 and room > 0 and call or nil))
    if item.token ~= '-' then
      off('taken', item.member)
      given_back[#given_back + 1] = item
    end
  elseif outcome == 'known' and call > 0 and item.group ~= '' then
    local entry = entry_read(item.group)
    local name, which, number = head_name(entry or entry_blank())
    if entry and redis.call('ZSCORE', shard .. 'taken', name) == text_of(-call) then
      member, record = next_of(name, which, number)
    end
  end
  for _, word in ipairs({ outcome, state_of(item.group), member, record }) do
    reply[#reply + 1] = word
  end
end
dead_room()
-- First, since it alone can fail.
reply[1] = record_write(at)
acks_write()
entry_write()
queue_write()
heads_write()
for _, item in ipairs(given_back) do
  redis.call('HDEL', shard .. 'tokens', item.member)
  redis.call('RPUSH', shard .. 'ended', item.member .. ' ' .. state_of(item.group))
end
reply[2], reply[3] = text_of(head.retry_bytes), text_of(head.dead_bytes)
return reply
