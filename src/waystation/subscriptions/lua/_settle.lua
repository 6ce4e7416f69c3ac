-- What becomes of heads, and how an item is settled. Include "moves" before it.
--   settle(item, at, call)   changes tables, writes nothing. Where a next head was taken for `call`:
--                            its member, which, number
local function drop_head(item, which)
  off('taken', item.member)
  if item.alone then
    alone_drop(which, item.number)
    head.alone = head.alone - (which == 'dead' and 1 or 0)
    return nil
  end
  local entry = entry_make(item.group)
  queue_drop(which, entry)
  entry.tries = 0
  return entry
end
function moves.r.done(item, at, call)
  local entry = drop_head(item, 'retry')
  fact('attempt', named('retry', item.number), '-', item.tries + 1, 'done', item.detail)
  if entry then
    return arm(item.group, entry, at, call)
  end
end
function moves.r.dead(item, at, call)
  local record = item.record ~= '' and item.record or record_of('retry', item.number)
  -- In this order: between the two its group must not be taken for a clean one.
  into_dead(item, record, at)
  local entry = drop_head(item, 'retry')
  if entry and entry.dead.n > 0 then
    follow_room = follow_room - follow_on(entry, follow_room)
  end
  if entry then
    return arm(item.group, entry, at, call)
  end
end
function moves.d.done(item, at, call)
  local entry = drop_head(item, 'dead')
  fact('attempt', named('dead', item.number), '-', item.tries + 1, 'done', item.detail)
  if not entry then
    count_alone(item.number, 'settled')
    return nil
  end
  if entry.operation ~= '0' then
    count_operation(entry.operation, 'settled', 1)
  end
  if entry.upto <= item.number then
    entry.upto = 0
  end
  return arm(item.group, entry, at, call)
end
-- In place, whatever the policy is by now: an operator asked for it, and sees what came of it.
function moves.d.dead(item, at)
  off('taken', item.member)
  if item.record ~= '' then
    record_replace('dead', item.number, item.record)
  end
  local place = named('dead', item.number)
  fact(item.alone and 'dead' or 'parked', place, place, item.tries + 1, 'dead', item.detail)
  if item.alone then
    put('failed', text_of(item.number), at)
    count_alone(item.number, 'parked_again')
    return nil
  end
  local entry = entry_make(item.group)
  if entry.operation ~= '0' then
    count_operation(entry.operation, 'parked_again', 1)
  end
  entry.upto, entry.tries = 0, 0
  arm(item.group, entry, at)
end
local function settle(item, at, call)
  if item.kind == 'm' then
    ack(item.place, item.number)
  end
  return moves[item.kind][item.verdict](item, at, call)
end
