#!lua
-- repeatable
-- Brings states back from the archive, each under its load nonce, for a while.
-- What has slept long enough is queued at once. Nobody else saves what somebody has loaded.
-- KEYS  1 record log
-- ARGV  1 terms, 2 ms for which they stay, then per item: id, load nonce, mode ('wake': it is due,
--       'deadline': it is to be ended, or ''), number of words, and these: head, field, value, field,
--       value, ...; no words: the archive has nothing
-- Reply {log end, then of each: restored | woken | cached (it was there) | again (the nonce is past) |
--       lost (it is nowhere, and should be) | unknown (nobody has it) | alive (the row is a snapshot of
--       what the store has lost)}
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
--- @include "_miss"
local SET, HOUR_MS = { wake = 'sleepingZ', deadline = 'deadlineZ' }, 3600000
local at, items, ids, spent, saved, from = now(), {}, {}, {}, {}, 3
while from <= #ARGV do
  items[#items + 1], ids[#ids + 1] = from, ARGV[from]
  from = from + 4 + tonumber(ARGV[from + 3])
end
local nonces, present = #ids > 0 and load_nonces(at, ids), any_present(ids)

-- Moves its time, if it has one yet.
local function due_at(mode, ms, id)
  if SET[mode] then
    redis.call('ZADD', cell .. SET[mode], 'XX', ms, id)
  end
end

local function cached(id, mode)
  local head = head_of(id)
  if not head or not ASLEEP[head.state] or mode == '' then
    return 'cached'
  elseif mode == 'wake' and (tonumber(head_rest(head).wake) or at) <= at then
    awaken(id, head, at)
    return 'woken'
  end
  due_at(mode, mode == 'deadline' and at or head_rest(head).wake, id)
  return 'cached'
end

local function save(id, line, first, last)
  local key = state_key(id)
  saved[id] = true
  redis.call('HSET', key, 'head', line, unpack(ARGV, first, math.min(first + 999, last)))
  for i = first + 1000, last, 1000 do
    redis.call('HSET', key, unpack(ARGV, i, math.min(i + 999, last)))
  end
end

-- Saves it as queued, if it was to wake by now.
local function waken(id, line, first, last)
  local queued, group, pipeline, owner, version, epoch, flags = head_woken(line, at)
  if queued then
    save(id, queued, first, last)
    off('sleepingZ', id)
    queue_push(cell .. 'qInL:' .. group, id)
    count(count_name(group, owner, pipeline, 'woken'))
    record_facts('woken ' .. id .. ' ' .. version .. ' ' .. epoch .. ' queued -')
    reply_woken(id, flags, owner, version, at)
  end
  return queued
end

local function restore(i, at_word)
  local id, mode, words = ids[i], ARGV[at_word + 2], tonumber(ARGV[at_word + 3])
  if (present or saved[id]) and not absent(id) then
    return cached(id, mode)
  elseif nonces[i] ~= ARGV[at_word + 1] then
    return 'again'
  end
  spent[#spent + 1] = id
  local line, first, last = ARGV[at_word + 4], at_word + 5, at_word + 3 + words
  if words > 0 and mode == 'wake' and waken(id, line, first, last) then
    return 'woken'
  end
  local head = words > 0 and head_read(line)
  local lost = not head or not head_rest(head).archive
  if words == 0 and mode == '' and not expected(id) then
    return 'unknown'
  elseif lost or head.state ~= 'complete' and not ASLEEP[head.state] then
    due_at(mode, at + HOUR_MS, id)
    count(lost and 'archive:::lost' or 'archive:::alive')
    return lost and 'lost' or 'alive'
  end
  save(id, line, first, last)
  redis.call('PEXPIRE', state_key(id), ARGV[2])
  due_at(mode, mode == 'deadline' and at or head.wake, id)
  return 'restored'
end

local reply = { '' }
for i, at_word in ipairs(items) do
  reply[i + 1] = restore(i, at_word)
end
load_forget(at, spent)
sets_write()
queue_write()
counts_write(at)
reply[1] = record_write(at, true)
return reply
