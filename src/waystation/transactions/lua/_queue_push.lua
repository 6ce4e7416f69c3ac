-- Puts ids into queues. Include "cell" before it.
--   queue_key(head)       the list that the words `queue` and `group` of a head name
--   queue_push(list, id)  gathers
--   queue_write(front)    once, at the end: one push per list, to its tail, or to its head; the
--                         order in which they were gathered is theirs in the list, too. Workers are
--                         called where a list was empty: others look by themselves
local pushed = {}
local function queue_key(head)
  return cell .. (head.queue == 'out' and 'qOutL:' or 'qInL:') .. head.group
end
local function queue_push(list, id)
  local ids = pushed[list]
  if not ids then
    ids = {}
    pushed[list] = ids
  end
  ids[#ids + 1] = id
end
local function queue_write(front)
  for list, ids in pairs(pushed) do
    local count = #ids
    if front then
      for i = 1, math.floor(count / 2) do
        ids[i], ids[count + 1 - i] = ids[count + 1 - i], ids[i]
      end
    end
    if redis.call(front and 'LPUSH' or 'RPUSH', list, unpack(ids)) == count then
      -- Only a hint: a user of the store who may not publish must not fail after the writes.
      redis.pcall('PUBLISH', cell .. 'work:' .. string.match(list, 'L:(.*)$'), 'queued')
    end
  end
  pushed = {}
end
