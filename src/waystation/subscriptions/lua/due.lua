#!lua flags=allow-oom
-- repeatable
-- Takes heads that are due for their owner; the same number of a call takes nothing twice.
-- KEYS  1 record log
-- ARGV  1 terms, 2 number of the call, 3 most, 4 bytes after which no more is taken
-- Reply {refused | frozen | missing}, or {now, log end, ms until the next is due or -1, then per head:
--       member, record}; `f…`: its group is to follow, and it stays due until it has
--- @include "store/_now"
--- @include "_shard"
--- @include "_entry"
--- @include "_queue"
--- @include "_heads"
--- @include "_heads_write"
local refused = refusal()
if refused then
  return { refused }
end
local at, bytes = now(), 0
local reply = { text_of(at), redis.call('HGET', KEYS[1] .. ':head', 'end') or '0', '-1' }
local score = text_of(-tonumber(ARGV[2]))
local known = redis.call('ZRANGE', shard .. 'taken', score, score, 'BYSCORE')
local members = #known > 0 and known
  or redis.call('ZRANGE', shard .. 'due', '-inf', text_of(at), 'BYSCORE', 'LIMIT', 0, ARGV[3])
for _, member in ipairs(members) do
  if bytes >= tonumber(ARGV[4]) then
    break
  end
  local kind, number = string.match(member, '^(%a)(%d+)')
  local record = record_of(kind == 'd' and 'dead' or 'retry', tonumber(number))
  if not record then
    -- Nobody can deliver it: what had it has gone without it.
    off(#known > 0 and 'taken' or 'due', member)
    head.orphans, head.changed = head.orphans + 1, true
  else
    reply[#reply + 1] = member
    reply[#reply + 1] = record
    bytes = bytes + #record
    if kind ~= 'f' and #known == 0 then
      off('due', member)
      put('taken', member, tonumber(score))
    end
  end
end
heads_write()
head_write()
local first = redis.call('ZRANGE', shard .. 'due', 0, 0, 'WITHSCORES')[2]
if first then
  reply[3] = text_of(math.max(0, tonumber(first) - at))
end
return reply
