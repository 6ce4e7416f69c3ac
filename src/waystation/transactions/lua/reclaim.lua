#!lua flags=allow-oom
-- repeatable
-- Finds what a claim has claimed whose reply was lost. It changes nothing; a page at a time.
-- KEYS  1 record log
-- ARGV  1 node, 2 number of the claim, 3 ms from which on the claim can have been, 4 how many of that
--       ms to pass over, 5 most ids to look at
-- Reply {ms, log end, looked at, time of the last one, then for each that is the claim's: id, head,
--       state, all its fields or ''}
--- @include "store/_now"
--- @include "_cell"
--- @include "_head"
local node = ARGV[1] .. ':' .. ARGV[2]
local running = redis.call(
  'ZRANGE', cell .. 'processingZ', ARGV[3], '+inf', 'BYSCORE', 'LIMIT', ARGV[4], ARGV[5], 'WITHSCORES'
)
local reply = {
  string.format('%.0f', now()), redis.call('HGET', KEYS[1] .. ':head', 'end') or '0', #running / 2,
  running[#running] or '0'
}
for i = 1, #running, 2 do
  local id = running[i]
  local found = redis.call('HMGET', state_key(id), 'head', 'state')
  local head = found[1] and head_rest(head_read(found[1]))
  if head and head.state == 'running' and head.node == node then
    reply[#reply + 1] = id
    reply[#reply + 1] = found[1]
    reply[#reply + 1] = found[2]
    reply[#reply + 1] = flagged(head, 'x') and redis.call('HGETALL', state_key(id)) or ''
  end
end
return reply
