#!lua flags=allow-oom
-- repeatable
-- Passes transactions on: to a child pipeline, a parent frame, or the node group of the next step.
-- KEYS  1 record log
-- ARGV  1 terms, then items as in "moves", each with five own words: 'snapshot' or '', node group,
--       'in' | 'out', pipeline of the top frame, the version that `in` begins, or '' for none
-- Reply {log end, outcome, version, ...}; outcomes: as of commit, and stale (the pipeline has another
--       version, or is gone: nothing was written)
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
return moves(at, 'passed', 5, function(id, head, own)
  local pipeline, version = ARGV[own + 4], ARGV[own + 5]
  if version ~= '' then
    local name = pipeline_key(head_rest(head).owner, pipeline)
    if redis.call('HGET', cell .. 'pipelineH:' .. name, 'active') ~= version then
      return 'stale'
    end
  end
  leave(id, head, 'queued')
  head.group, head.queue, head.pipeline = ARGV[own + 2], ARGV[own + 3], pipeline
  if ARGV[own + 1] ~= '' then
    head.archive = 'snapshot'
    put('toArchiveZ', at, id)
  end
  queue_push(queue_key(head), id)
  count_of(head, 'passed')
  return 'done', {}
end)
