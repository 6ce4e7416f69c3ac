-- The one table of what a verdict makes of a message and its group; "settle" adds the rows of heads
-- that end. Include "entry", "queue", "heads", "record" and "follow_on" before it.
local follow_room = 50
local function named(which, number)
  return string.sub(which, 1, 1) .. text_of(number)
end
local function into_retry(item, due, tries)
  if item.group == '' then
    local y = alone_push('retry', item.record)
    put('due', 'r' .. text_of(y) .. '.' .. tries, due)
    return y
  end
  local entry = entry_make(item.group)
  local y = queue_push('retry', entry, item.record)
  if entry.retry.n == 1 and entry.upto == 0 then
    entry.tries = entry.dead.n == 0 and tries or entry.tries
    arm(item.group, entry, due)
  end
  return y
end
local function into_dead(item, record, at)
  local parks = item.group ~= '' and policy == 'park'
  local z = parks and queue_push('dead', entry_make(item.group), record) or alone_push('dead', record)
  if not parks then
    put('failed', text_of(z), at)
    head.alone = head.alone + 1
  end
  fact(parks and 'parked' or 'dead', string.match(item.member, '^m.*') or named(item.kind, item.number),
    named('dead', z), item.tries + 1, 'dead', item.detail)
  return parks and entry_make(item.group)
end
local function stays(item, due, tries)
  off('taken', item.member)
  put('due', named(item.kind, item.number) .. '.' .. text_of(tries), due)
  if not item.alone then
    entry_make(item.group).tries = tries
  end
end
local moves = { m = {}, r = {}, d = {} }
function moves.m.done(item)
  fact('attempt', item.member, '-', 1, 'done', item.detail)
end
function moves.m.again(item, at)
  fact('attempt', item.member, named('retry', into_retry(item, at + item.wait, 1)), 1, 'again', item.detail)
end
function moves.m.late(item)
  fact('late', item.member, named('retry', into_retry(item, item.wait, 0)), 0, 'late', item.detail)
end
function moves.m.behind(item, at)
  local entry = item.group ~= '' and entry_read(item.group)
  local which = entry and entry.retry.n == 0 and 'dead' or 'retry'
  local number = which == 'dead' and queue_push('dead', entry_make(item.group), item.record)
    or into_retry(item, at, 0)
  fact('behind', item.member, named(which, number), 0, 'behind', item.detail)
end
function moves.m.dead(item, at)
  local entry = into_dead(item, item.record, at)
  if entry and entry.dead.n == 1 then
    entry.tries = 0
    arm(item.group, entry, at)
  end
end
function moves.r.again(item, at)
  if item.record ~= '' then
    record_replace(item.kind == 'r' and 'retry' or 'dead', item.number, item.record)
  end
  stays(item, at + item.wait, item.tries + 1)
  local place = named(item.kind, item.number)
  fact('attempt', place, place, item.tries + 1, 'again', item.detail)
end
function moves.r.late(item)
  stays(item, item.wait, item.tries)
end
function moves.r.release(item, at)
  stays(item, at, item.tries)
end
moves.d.again, moves.d.late, moves.d.release = moves.r.again, moves.r.late, moves.r.release
