#!lua flags=allow-oom
-- repeatable
-- Notes that a client is told the end by the long poll that is about to answer.
-- Where it asked for that, its webhook is taken back, if it was not sent yet; an attempt under way then
-- settles nothing.
-- KEYS  1 record log
-- ARGV  1 terms, 2 owner or '' for any, 3 id
-- Reply {done | known (somebody was faster) | alive | unknown, version, ms at which it was told first
--       or ''}, or {missing, load nonce}
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_record"
--- @include "_sets"
--- @include "_miss"
--- @include "_noted"
local at, id = now(), ARGV[3]
local head = head_of(id)
if not head and absent(id) then
  return { 'missing', miss(at, { id })[1] }
elseif not head or (ARGV[2] ~= '' and head_rest(head).owner ~= ARGV[2]) then
  return { 'unknown', 0, '' }
elseif head.state ~= 'complete' then
  return { 'alive', head.version, '' }
end
local found = redis.call('HMGET', state_key(id), 'notifiedTime', 'reply')
if found[1] then
  return { 'known', head.version, found[1] }
end
local letters, webhook = string.match(found[2] or '', '^(%S+).* (w%.%S+)')
if letters and string.find(letters, 'k', 1, true)
  and redis.call('ZREM', reply_lane(webhook), id) == 1 then
  local beside = { '.attempts', '.cause', '.token', '.newer' }
  for i, name in ipairs(beside) do
    beside[i] = id .. name
  end
  redis.call('HDEL', REPLY_ITEMS, id, unpack(beside))
end
local told = string.format('%.0f', at)
noted(id, head, at, { 'notifiedTime', told }, 'poll')
noted_write(at)
return { 'done', head.version, told }
