#!lua
-- repeatable
-- Gives a step the answer that it waits for, or is about to wait for.
-- A second use is refused. A call that was repeated, since its reply was lost, finds its own token in
-- switch `$callback`, also when the step has ended by then.
-- KEYS  1 record log
-- ARGV  1 terms, 2 '' for any owner, 3 id, 4 place of the step, 5 token of this request, 6 body
-- Reply {done | used | unknown, version}, or {missing, load nonce}
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
local NAME = '$callback'
local at, id, field, value = now(), ARGV[3], 'callback:' .. ARGV[4], ARGV[4] .. ':' .. ARGV[5]
local key = state_key(id)
local head = head_of(id)
if not head then
  if absent(id) then
    return { 'missing', miss(at, { id })[1] }
  end
  return { 'unknown', 0 }
end
local found = redis.call('HMGET', key, 'switches', field)
local switches = switches_read(found[1] or '')
if switches.value[NAME] == value then
  return { 'done', head.version }
elseif head.state == 'complete' or found[2] ~= '-' then
  return { 'used', head.version }
end
if not switches.value[NAME] then
  table.insert(switches.order, NAME)
end
switches.value[NAME], switches.unseen[NAME] = value, true
redis.call('HSET', key, field, '+' .. ARGV[6], 'switches', switches_text(switches))
flag(head, 'x')
if ASLEEP[head.state] then
  -- Also where it does not wait for it: it sleeps before it asks again, and has the answer now.
  awaken(id, head, at, 'switched', NAME)
else
  redis.call('HSET', key, 'head', head_line(head))
  record('switched', id, head, nil, NAME)
end
sets_write()
queue_write()
counts_write(at)
record_write(at, true)
return { 'done', head.version }
