-- Events for those who want to hear of a transaction. Include before it: cell, head, outbox_put.
-- With flag `r` there is a field `reply`: letters (`p` progress, too; `s` changes of state, too; `k` a
-- long poll takes the webhook back; `-` for none), then the receivers. Each has at most one event of a
-- transaction waiting, the newest.
--   reply_put(id, head, event, at)   `complete`, `progress` or `status`, once head_line has made the
--                                    version that it comes with
--   reply_woken(id, flags,           the same of what head_woken has made: it runs again
--               owner, version, at)
--   reply_lane(receiver)             the lane of a receiver in this cell
--   REPLY_ITEMS                      what waits, of all lanes of the cell
local REPLY_ITEMS, REPLY_LETTERS = cell .. 'webhookH', { progress = 'p', status = 's' }
local function reply_lane(receiver)
  return cell .. 'webhooksZ:' .. receiver
end
local function reply_put(id, head, event, at)
  if not flagged(head, 'r') then
    return
  end
  local wanted = redis.call('HGET', state_key(id), 'reply') or ''
  local letter = REPLY_LETTERS[event]
  if letter and not string.find(string.match(wanted, '^%S*'), letter, 1, true) then
    return
  end
  local failed = cell .. 'webhooksFailedZ:' .. head_rest(head).owner
  for receiver in string.gmatch(wanted, ' (%S+)') do
    local kind = string.sub(receiver, 1, 1)
    outbox_put(
      at, { reply_lane(receiver), REPLY_ITEMS, cell .. 'webhookLanesZ', failed },
      kind == 'w' and id or id .. '.' .. kind, event .. ' ' .. head.version
    )
  end
end
local function reply_woken(id, flags, owner, version, at)
  if string.find(flags, 'r', 1, true) then
    reply_put(id, { flags = flags, pipeline = '', owner = owner, version = version }, 'status', at)
  end
end
