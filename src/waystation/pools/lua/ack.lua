#!lua flags=allow-oom
-- repeatable
-- Settles messages that a worker was given, and gives it the next of each key if it wants.
-- KEYS  1 head
-- ARGV  1 terms, 2 uid, 3 session, 4 length of the lease of the next in ms (0: none is wanted),
--       then per message: key, epoch, number, token
-- Reply {missing}, or {ok, then per message: done | known | lost, then of the next: number, tries,
--       crashes, enqueued ms, envelope; number 0: there is none}
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
local uid, lease_ms, reply = ARGV[2], tonumber(ARGV[4]), { 'ok' }
given_access(uid, ARGV[3])
local worker = worker_read(uid)
local function told(outcome, entry, number, ms, packed)
  local words = { outcome, 0, 0, 0, 0, '' }
  if number then
    words = { outcome, number, entry.tries, entry.crashes, text_of(ms), packed }
  end
  for _, word in ipairs(words) do
    reply[#reply + 1] = word
  end
end
for i = 5, #ARGV, 4 do
  local key, epoch, token = ARGV[i], ARGV[i + 1], ARGV[i + 3]
  local state, entry = given_state(uid, key, epoch, ARGV[i + 2], token), entry_read(key)
  if state == 'given' then
    event('acknowledged ' .. ARGV[i + 2] .. ' ' .. epoch, { key, uid })
    local number, ms, packed = head_drop(key, entry)
    if number and lease_ms > 0 and worker.state == 'live' then
      head_take(key, entry, token, lease_ms)
      told('done', entry, number, ms, packed)
    else
      if number then
        ready_add(uid, key, ms)
      end
      key_leave(key, entry)
      told('done')
    end
  elseif state == 'known' and lease_ms > 0 and entry and entry.epoch == epoch and entry.token == token then
    -- It was this very call, whose reply was lost: with what it had given.
    told('known', entry, head_of(key))
  else
    told(state == 'freed' and 'lost' or state)
  end
end
finish()
return reply
