#!lua flags=no-writes
-- repeatable
-- Read a page of dead letters, in the order of the times at which they became one, then of their ids.
-- A letter that is redriven or purged between two pages makes neither page skip another letter.
--
-- KEYS    1 dead, 2 failed
-- ARGV    1 time in ms and 2 id of the last letter of the page before (0 and empty: first page),
--         3 number of letters
-- Reply   {id, letter, …}
-- Errors  none of its own
local STEP = 100
local last_ms, last_id, limit = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local reply = {}
-- Letters of the same millisecond are read again, because the last one may be gone.
local rank = redis.call('ZCOUNT', KEYS[2], '-inf', '(' .. ARGV[1])
while #reply < 2 * limit do
  local found = redis.call('ZRANGE', KEYS[2], rank, rank + STEP - 1, 'WITHSCORES')
  if #found == 0 then
    break
  end
  for i = 1, #found, 2 do
    if #reply < 2 * limit and (tonumber(found[i + 1]) > last_ms or found[i] > last_id) then
      local letter = redis.call('HGET', KEYS[1], found[i])
      if letter then
        reply[#reply + 1] = found[i]
        reply[#reply + 1] = letter
      end
    end
  end
  rank = rank + STEP
end
return reply
