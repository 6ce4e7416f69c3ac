-- Writes the entries of groups. Include "entry" before it.
--   entry_write()   one HSET of all that were made, one HDEL of those that are clean again
local function entry_write()
  local kept, gone = {}, {}
  for group, entry in pairs(entries) do
    if entry.changed and entry_is_clean(entry) then
      gone[#gone + 1] = entry.stored and group or nil
    elseif entry.changed then
      kept[#kept + 1] = group
      kept[#kept + 1] = entry_line(entry)
    end
  end
  if #kept > 0 then
    redis.call('HSET', shard .. 'groups', unpack(kept))
  end
  if #gone > 0 then
    redis.call('HDEL', shard .. 'groups', unpack(gone))
  end
end
