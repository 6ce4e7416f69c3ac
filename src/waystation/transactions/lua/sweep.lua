#!lua flags=allow-oom
-- repeatable
-- Cancels children that nobody waits for, up to 100 a call over all parents.
-- Parents that have been due the longest come first.
-- A child that is neither in the store nor among the results of its parent is in the archive, and so
-- may be the parent. The caller loads it; meanwhile it is another parent's turn.
-- KEYS  1 record log
-- ARGV  1 terms, 2 grace time in ms, 3 ms after which one that has to wait is looked at again, then ids
--       that the archive does not have either: they are passed over
-- Reply {number of children looked at, and of parents that had none to look at, ms until there is more or -1, then of what is missing: id, load
--       nonce, ...}
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_due"
--- @include "_queue_push"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_kids"
--- @include "_complete"
--- @include "_ended"
--- @include "_stop"
--- @include "_miss"
local MOST = 100
local at, looked, missing, lost, swept_parents = now(), 0, {}, {}, {}
for i = 4, #ARGV do
  lost[ARGV[i]] = true
end

-- Cancels child n; false if it has to be loaded first.
local function sweep_child(parent, n, round, cause)
  local id = child_id(parent, round, n)
  local child = head_of(id)
  if child and child.state ~= 'complete' then
    stop(id, child, 'c', at, cause, ARGV[2], true)
    -- It may be a parent that this call has looked at, and has children to cancel only now.
    swept_parents[id] = nil
  elseif not child and not lost[id] and absent(id)
    and redis.call('HEXISTS', state_key(parent), 'result:' .. n) == 0 then
    missing[#missing + 1] = id
    return false
  end
  return true
end

-- Cancels the next children, as many as the call may look at yet; true if there are no more.
local function sweep_children(parent, head, kids)
  local failed = kids.policy == 'cancel_rest' and kids.failed ~= '-'
  if not failed and head.state ~= 'complete' and not flagged(head, 'ct') then
    return true
  end
  local cause = failed and 'a child beside it has failed' or 'its parent has ended'
  local before, swept = kids.swept, kids.swept
  for n = before + 1, math.min(before + MOST - looked, kids.created) do
    looked = looked + 1
    if sweep_child(parent, n, kids.round, cause) and swept == n - 1 then
      swept = n
    end
  end
  if swept > before then
    local key = state_key(parent)
    kids.swept = swept
    redis.call('HSET', key, 'head', head_line(head), 'kids', kids_text(kids))
    if head.state == 'complete' or ASLEEP[head.state] then
      -- It may have been archived by now, without this.
      redis.call('PERSIST', key)
      put('toArchiveZ', at + archive_ms, parent)
    end
  end
  return swept >= kids.created
end

local function sweep(parent)
  local head, before, waits = head_of(parent), looked, #missing
  local kids = head and kids_read(redis.call('HGET', state_key(parent), 'kids'))
  if not head and absent(parent) and not lost[parent] then
    missing[#missing + 1] = parent
  elseif not kids or sweep_children(parent, head, kids) then
    swept_parents[parent] = true
  end
  if #missing > waits then
    put('sweepZ', at + tonumber(ARGV[3]), parent)
  end
  if looked == before then
    looked = looked + 1
  end
end

local due = { '-inf', at, 'BYSCORE', 'LIMIT', 0, MOST }
for _, parent in ipairs(redis.call('ZRANGE', cell .. 'sweepZ', unpack(due))) do
  if looked >= MOST then
    break
  end
  sweep(parent)
end
for parent in pairs(swept_parents) do
  off('sweepZ', parent)
end
ended_write(at)
local reply = { looked, due_in('sweepZ', at) }
for i, nonce in ipairs(#missing > 0 and miss(at, missing) or {}) do
  reply[2 * i + 1], reply[2 * i + 2] = missing[i], nonce
end
return reply
