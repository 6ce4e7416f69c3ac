#!lua flags=allow-oom
-- repeatable
-- Lets transactions wait for their children; one whose children have all ended is queued at once.
-- KEYS  1 record log
-- ARGV  1 terms, then items as in "moves"
-- Reply {log end, outcome, version, ...}; outcomes: waiting, queued, fan-incomplete (not all children
--       are created: nothing was written), and as of commit
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
return moves(now(), 'fanned', 0, function(id, head)
  local kids = kids_read(redis.call('HGET', state_key(id), 'kids'))
  if not kids or kids.created < kids.total then
    return 'fan-incomplete'
  end
  if kids.done < kids.total then
    leave(id, head, 'waiting_children')
    return 'waiting', {}
  end
  leave(id, head, 'queued')
  head.queue = 'out'
  queue_push(queue_key(head), id)
  return 'queued', {}
end)
