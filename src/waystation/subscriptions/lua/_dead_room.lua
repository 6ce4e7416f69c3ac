-- Room among dead letters, where losses are allowed. Include "queue", "heads" and "record" before it.
--   dead_room()   drops the oldest dead letters that stand alone while there is more than the maximum
local function dead_room()
  if not dead_max or full_policy ~= 'drop_and_count' or head.dead_bytes <= dead_max then
    return
  end
  for _, member in ipairs(redis.call('ZRANGE', shard .. 'failed', 0, 99)) do
    if head.dead_bytes <= dead_max then
      return
    end
    if string.match(member, '^%d+$') and sets.failed[member] == nil then
      alone_drop('dead', tonumber(member))
      off('failed', member)
      head.dropped, head.alone = head.dropped + 1, head.alone - 1
      fact('dropped', 'd' .. member, '-', 0, 'dropped')
    end
  end
end
