#!lua flags=no-writes
-- repeatable
-- A page of dead letters, in the order in which they failed.
-- KEYS  1 head
-- ARGV  1 terms, 2 most, 3 ms and 4 number of the last one that was seen; 0 and 0: from the beginning
-- Reply {missing}, or {ok, then per letter: number, ms of its end, enqueued ms, tries, crashes, key, cause,
--       envelope}; fewer than asked for only at the end, or where they are large
--- @include "store/_now"
--- @include "_pool"
--- @include "_dead"
local refused = refusal()
if refused then
  return { refused }
end
local BYTES_MAX = 1048576
-- One that has gone meanwhile left its time: what failed in that very millisecond may come again.
local rank = redis.call('ZRANK', pool .. 'failed', ARGV[4])
local from = rank and rank + 1 or redis.call('ZCOUNT', pool .. 'failed', '-inf', '(' .. ARGV[3])
local found = redis.call('ZRANGE', pool .. 'failed', from, from + tonumber(ARGV[2]) - 1, 'WITHSCORES')
local reply, size = { 'ok' }, 0
for i = 1, #found, 2 do
  local letter = { found[i], found[i + 1], dead_read(found[i]) }
  size = size + #letter[8]
  if size > BYTES_MAX and #reply > 1 then
    break
  end
  for _, word in ipairs(letter) do
    reply[#reply + 1] = word
  end
end
return reply
