#!lua flags=allow-oom
-- repeatable
-- Puts claimed items off once more, while their attempts are under way.
-- KEYS  1 due, 2 items
-- ARGV  1 length of the claims in ms, then for each item: id, token
-- Reply ids whose claim is not ours any more
--- @include "store/_now"
local til, lost = now() + tonumber(ARGV[1]), {}
for i = 2, #ARGV, 2 do
  if redis.call('HGET', KEYS[2], ARGV[i] .. '.token') == ARGV[i + 1] then
    redis.call('ZADD', KEYS[1], 'XX', til, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
