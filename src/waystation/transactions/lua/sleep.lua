#!lua flags=allow-oom
-- repeatable
-- Puts transactions to sleep until a time, or until a switch changes.
-- One whose switch has changed since its step looked is queued at once: no wake-up is lost.
-- KEYS  1 record log
-- ARGV  1 terms, then items as in "moves", each with seven own words: 'snapshot' or '' (for what is
--       queued at once), delay in ms or '', switch or '', place of the step, ms that it waits at most
--       or '', switches as the step has seen them, 'untried' or '' (nobody has called the step)
-- Reply {log end, outcome, version, ...}; outcomes: waiting, queued, and as of commit
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_due"
--- @include "_owned_by"
--- @include "_queue_push"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_kids"
--- @include "_complete"
--- @include "_ended"
--- @include "_moves"
--- @include "_switches"
local SWITCH_MS, PLAIN_MS = 7200000, 300000
local at, first = now(), math.huge

-- When `at_most` has passed is fixed by the first Wait. A step that was told so, and waits on, names
-- none any more.
local function wait_until(id, field, at_most, wake, fields)
  local til = tonumber(redis.call('HGET', state_key(id), field) or nil)
  if not til then
    til = at + tonumber(at_most)
    fields[1], fields[2] = field, string.format('%.0f', til)
  end
  return math.min(til, wake)
end

local reply = moves(at, 'slept', 7, function(id, head, own)
  local switch, at_most = ARGV[own + 3], ARGV[own + 5]
  local fields, changed = {}, false
  local wake = at + (tonumber(ARGV[own + 2]) or switch ~= '' and SWITCH_MS or PLAIN_MS)
  if switch ~= '' and at_most ~= '' then
    wake = wait_until(id, 'wait:' .. ARGV[own + 4] .. ':' .. switch, at_most, wake, fields)
  end
  if flagged(head, 'x') then
    local text = redis.call('HGET', state_key(id), 'switches') or ''
    local switches = switches_read(text)
    switches_seen(switches, ARGV[own + 6])
    changed = switch ~= '' and switches_unseen(switches, switch)
    if changed then
      switches_clear(switches)
    end
    if switches_text(switches) ~= text then
      fields[#fields + 1], fields[#fields + 2] = 'switches', switches_text(switches)
    end
  end
  if changed then
    leave(id, head, 'queued')
    head.queue = 'in'
    if ARGV[own + 1] ~= '' then
      head.archive = 'snapshot'
      put('toArchiveZ', at, id)
    end
    queue_push(queue_key(head), id)
    return 'queued', fields
  end
  leave(id, head, switch == '' and 'sleeping' or 'waiting_switch')
  head.wake, head.archive = string.format('%.0f', wake), 'remove'
  head.switch = switch == '' and '-' or switch
  put('sleepingZ', wake, id)
  put('toArchiveZ', at + archive_ms, id)
  first = math.min(first, wake)
  return 'waiting', fields, ARGV[own + 7] ~= ''
end)
if first < math.huge then
  due_hint('sleepingZ', first)
end
return reply
