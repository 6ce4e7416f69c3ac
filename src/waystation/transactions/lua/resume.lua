#!lua flags=allow-oom
-- repeatable
-- Queues what a pipeline that was paused holds.
-- The newest first, each time before what is queued, so that in the end the order is the old one.
-- While the pipeline is paused nothing moves.
-- KEYS  1 record log
-- ARGV  1 terms, 2 pipeline, as names of keys have it, 3 most ids
-- Reply {how many were queued, how many were looked at, how many are left}
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_queue_push"
--- @include "_record"
--- @include "_counts"
local at, list, queued = now(), cell .. 'holdL:' .. ARGV[2], 0
if redis.call('HGET', cell .. 'pipelineH:' .. ARGV[2], 'paused') == '1' then
  return { 0, 0, redis.call('LLEN', list) }
end
local ids = redis.call('LRANGE', list, -tonumber(ARGV[3]), -1)
for _, id in ipairs(ids) do
  local head = head_of(id)
  -- Others have ended while they were held; their entry is all that was left of them here.
  if head and head.state == 'held' then
    head.state = 'queued'
    redis.call('HSET', state_key(id), 'head', head_line(head, at))
    queue_push(queue_key(head), id)
    count_of(head, 'queued')
    record('resumed', id, head)
    reply_put(id, head, 'status', at)
    queued = queued + 1
  end
end
if #ids > 0 then
  redis.call('LTRIM', list, 0, -#ids - 1)
end
queue_write(true)
counts_write(at)
record_write(at, true)
return { queued, #ids, redis.call('LLEN', list) }
