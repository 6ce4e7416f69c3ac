#!lua flags=allow-oom
-- repeatable
-- Commits what came of steps; the holder goes on with the next ones.
-- KEYS  1 record log
-- ARGV  1 terms, then items as in "moves", each with one own word: 'snapshot' to have the state
--       archived as it is now, or ''
-- Reply {log end, outcome, version, outcome, version, ...}; outcomes: done, known (it was applied
--       already), cancelled (the transaction was to end, and has), refused, unknown
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
local at = now()
return moves(at, 'step', 1, function(id, head, own)
  if ARGV[own + 1] ~= '' then
    head_rest(head).archive = 'snapshot'
    put('toArchiveZ', at, id)
  end
  return 'done', {}
end)
