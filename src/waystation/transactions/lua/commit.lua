#!lua flags=allow-oom
-- repeatable
-- Commits what came of steps; the holder goes on with the next ones.
-- KEYS  1 record log
-- ARGV  1 terms, then items as in "moves", each with one own word: 'snapshot' to have the state
--       archived as it is now, or ''
-- Reply {log end, outcome, version, outcome, version, ...}; outcomes: done, known (it was applied
--       already), cancelled (the transaction was to end, and has), refused, unknown
--- @include "now"
--- @include "log_trim"
--- @include "log_append"
--- @include "cell"
--- @include "head"
--- @include "outbox_put"
--- @include "reply_put"
--- @include "due"
--- @include "owned_by"
--- @include "queue_push"
--- @include "record"
--- @include "counts"
--- @include "sets"
--- @include "kids"
--- @include "complete"
--- @include "ended"
--- @include "moves"
local at = now()
return moves(at, 'step', 1, function(id, head, own)
  if ARGV[own + 1] ~= '' then
    head_rest(head).archive = 'snapshot'
    put('toArchiveZ', at, id)
  end
  return 'done', {}
end)
