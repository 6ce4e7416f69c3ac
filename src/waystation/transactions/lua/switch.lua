#!lua flags=allow-oom
-- repeatable
-- Sets a switch of a transaction, or deletes it; wakes the step that waits for it.
-- Also in a full store: the transaction can end then, which makes room. Number and length of switches are
-- bounded.
-- KEYS  1 record log
-- ARGV  1 terms, 2 owner or '' for any, 3 id, 4 name, 5 value as JSON, or '-' to delete it, 6 most
--       switches of a transaction
-- Reply {nochange | updated | woken | unknown | final | too-many, version, all its switches}, or
--       {missing, load nonce, ''}
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_queue_push"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_awaken"
--- @include "_switches"
--- @include "_miss"
local at, id, name = now(), ARGV[3], ARGV[4]
local value = ARGV[5] == '-' and '' or ARGV[5]
local key = state_key(id)
local head = head_of(id)
if not head and absent(id) then
  return { 'missing', miss(at, { id })[1], '' }
end
local text = head and redis.call('HGET', key, 'switches') or ''
if not head or (ARGV[2] ~= '' and head_rest(head).owner ~= ARGV[2]) then
  return { 'unknown', 0, '' }
end
local switches = switches_read(text)
if (switches.value[name] or '') == value then
  -- Also of what has ended meanwhile: who repeats it, since the reply was lost, has set it.
  return { 'nochange', head.version, text }
elseif head.state == 'complete' then
  return { 'final', head.version, text }
elseif not switches.value[name] then
  -- Our own does not count.
  local ours = switches.value['$callback'] and 1 or 0
  if #switches.order - ours >= tonumber(ARGV[6]) then
    return { 'too-many', head.version, text }
  end
  table.insert(switches.order, name)
end
-- A step that runs has seen what was deleted: a name without a value tells it so at its next Wait.
switches.value[name] = value
switches.unseen[name] = value ~= '' or head.state == 'running'
text = switches_text(switches)
redis.call('HSET', key, 'switches', text)
flag(head, 'x')
local outcome, cause = 'updated', value == '' and name or name .. '=' .. value
if head.state == 'waiting_switch' and head_rest(head).switch == name then
  outcome = 'woken'
  awaken(id, head, at, 'switched', cause)
else
  if ASLEEP[head.state] then
    head_rest(head).archive = 'remove'
    put('toArchiveZ', at + archive_ms, id)
  end
  redis.call('HSET', key, 'head', head_line(head))
  redis.call('PERSIST', key)
  record('switched', id, head, nil, cause)
end
sets_write()
queue_write()
counts_write(at)
record_write(at, true)
return { outcome, head.version, text }
