#!lua
-- repeatable
-- Puts dead letters into the retry set, due at once and with no attempt made; or forgets them.
-- One that cannot be read is never put back: it would be dead at once.
-- KEYS  1 retry set, 2 dead, 3 failed
-- ARGV  1 `redrive` or `purge`, 2 most (of the oldest, where no ids follow), then ids
-- Reply how many
--- @include "store/_now"
local at, count = now(), 0
local ids = { unpack(ARGV, 3) }
if #ids == 0 then
  ids = redis.call('ZRANGE', KEYS[3], 0, tonumber(ARGV[2]) - 1)
end
for _, id in ipairs(ids) do
  -- `<ms> <attempts> <bytes of the cause> <1: readable> <cause><member>`
  local letter = redis.call('HGET', KEYS[2], id)
  local _, last, length, readable = string.find(letter or '', '^%d+ %d+ (%d+) (%d) ')
  if letter and (ARGV[1] == 'purge' or readable == '1') then
    if ARGV[1] == 'redrive' then
      local member = string.sub(letter, last + 1 + tonumber(length))
      redis.call('ZADD', KEYS[1], string.format('%.3f', at / 1000), member)
    end
    redis.call('HDEL', KEYS[2], id)
    redis.call('ZREM', KEYS[3], id)
    count = count + 1
  end
end
return count
