#!lua flags=allow-oom
-- repeatable
-- Gives messages back that a worker was given: to be tried again after a wait, never, or as if never given.
-- KEYS  1 head
-- ARGV  1 terms, 2 uid, 3 session, then per message: key, epoch, number, token,
--       again | dead | release, wait in ms, cause
-- Reply {missing}, or {ok, then per message: done | dead | known | lost}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
--- @include "_pick"
--- @include "_heads"
--- @include "_moves"
--- @include "_given"
local refused = refusal()
if refused then
  return { refused }
end
local uid, reply = ARGV[2], { 'ok' }
local verbs = {}
function verbs.release(key, entry)
  head_free(key, entry, false)
  return 'done'
end
function verbs.dead(key, entry, _, cause)
  local number, ms = head_drop(key, entry, cause)
  if number then
    ready_add(uid, key, ms)
  end
  return 'dead'
end
function verbs.again(key, entry, wait_ms, cause, number)
  entry.tries = entry.tries + 1
  if entry.tries >= attempts then
    return verbs.dead(key, entry, wait_ms, cause)
  end
  entry.token = '-'
  entry_write(key)
  redis.call('ZREM', pool .. 'taken:' .. uid, key)
  event('returned ' .. number .. ' ' .. entry.epoch .. ' ' .. entry.tries, { key, uid })
  ready_add(uid, key, at + wait_ms)
  return 'done'
end
for i = 4, #ARGV, 7 do
  if not verbs[ARGV[i + 4]] or not tonumber(ARGV[i + 5]) then
    error('no such verdict: ' .. tostring(ARGV[i + 4]))
  end
end
given_access(uid, ARGV[3])
for i = 4, #ARGV, 7 do
  local key = ARGV[i]
  local state = given_state(uid, key, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  if state == 'given' then
    local entry = entry_read(key)
    reply[#reply + 1] = verbs[ARGV[i + 4]](key, entry, tonumber(ARGV[i + 5]), ARGV[i + 6], ARGV[i + 2])
    key_leave(key, entry)
  else
    -- Freed: most likely by this very call, whose reply was lost.
    reply[#reply + 1] = state == 'freed' and 'known' or state
  end
end
finish()
return reply
