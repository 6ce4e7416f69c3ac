-- Groups that follow their first dead letter. Include "entry", "queue", "heads" and "record" before.
--   follow_on(entry, most)   moves up to `most` of a group from retry to the end of its dead letters,
--                            in order, without attempts; less where they are large. Returns how many.
--                            Nothing while dead letters are redriven. The caller arms the group
local function follow_on(entry, most)
  local moved, bytes = 0, 0
  while moved < most and bytes < 1048576 and entry.retry.n > 0 and entry.upto == 0 do
    local y = entry.retry.h
    local record = record_of('retry', y)
    off('due', 'f' .. text_of(y))
    queue_drop('retry', entry)
    if record then
      local z = queue_push('dead', entry, record)
      fact('followed', 'r' .. text_of(y), 'd' .. text_of(z), 0, 'dead')
      bytes = bytes + #record
    end
    moved = moved + 1
  end
  return moved
end
