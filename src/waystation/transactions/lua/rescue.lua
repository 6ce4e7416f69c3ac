#!lua flags=allow-oom
-- repeatable
-- Takes what nobody renews any more from its holder, and queues it again, as a suspect.
-- It gets a higher epoch, so that a late commit is refused. A death takes everything that its process
-- held with it, so only a suspect that had begun again counts; one that did so too often is completed,
-- as is what was to end anyway.
-- KEYS  1 record log
-- ARGV  1 terms, 2 most ids, 3 begun rescues that a transaction may have
-- Reply {how many, ms until the next lease is over or -1}
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_due"
--- @include "_queue_push"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_kids"
--- @include "_complete"
--- @include "_ended"
local at, rescued = now(), 0
local over = redis.call('ZRANGE', cell .. 'leaseZ', '-inf', at, 'BYSCORE', 'LIMIT', 0, ARGV[2])

local function rescue(id, head)
  head_rest(head)
  head.epoch = head.epoch + 1
  local stopped = STOPPED[string.match(head.flags, '[ct]')]
  if stopped then
    -- It was to end, and nobody is left to wait for.
    complete(id, head, stopped[1], at)
    record(stopped[2], id, head)
    return
  end
  if flagged(head, 'b') then
    head.rescues = head.rescues + 1
  end
  if head.rescues > tonumber(ARGV[3]) then
    local cause = 'rescued too often'
    complete(id, head, 'internal-error', at, cause)
    record('rescued', id, head, '', cause)
    return
  end
  unflag(head, 'b')
  flag(head, 's')
  head.state, head.node = 'queued', '-'
  redis.call('HSET', state_key(id), 'head', head_line(head, at))
  queue_push(queue_key(head), id)
  count_of(head, 'rescued')
  record('rescued', id, head)
end

for _, id in ipairs(over) do
  off('processingZ', id)
  off('leaseZ', id)
  local head = head_of(id)
  if head and head.state == 'running' then
    rescue(id, head)
    rescued = rescued + 1
  end
end
ended_write(at, true)
local first = redis.call('ZRANGE', cell .. 'leaseZ', 0, 0, 'WITHSCORES')
return { rescued, first[2] and math.max(0, tonumber(first[2]) - at) or -1 }
