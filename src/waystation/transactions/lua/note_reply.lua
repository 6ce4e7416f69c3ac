#!lua flags=allow-oom
-- repeatable
-- Notes what became of webhooks in the states that they told of. The same again writes nothing.
-- KEYS  1 record log
-- ARGV  1 terms, then for each: id, delivered | failed, cause
-- Reply for each: done | known | missing (it is not in the store)
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "_record"
--- @include "_sets"
--- @include "_noted"
local at, reply = now(), {}
local told = string.format('%.0f', at)

local function note(id, status, cause)
  -- What is there and no hash counts as none, as in "head_of".
  local found = redis.pcall(
    'HMGET', state_key(id), 'head', 'webhook_status', 'webhook_comment', 'notifiedTime'
  )
  local head = found[1] and head_read(found[1])
  if not head then
    return 'missing'
  end
  local first = status == 'delivered' and head.state == 'complete' and not found[4]
  if found[2] == status and found[3] == cause and not first then
    return 'known'
  end
  local fields = { 'webhook_status', status, 'webhook_comment', cause, 'webhook_latest', told }
  if first then
    fields[7], fields[8] = 'notifiedTime', told
  end
  noted(id, head, at, fields, cause == '' and status or status .. ': ' .. cause)
  return 'done'
end

for i = 2, #ARGV, 3 do
  reply[#reply + 1] = note(ARGV[i], ARGV[i + 1], ARGV[i + 2])
end
noted_write(at)
return reply
