-- Dead letters. Include "pool" before it.
--   dead_read(number)        enqueued ms, tries, crashes, key, cause, envelope; nil: there is none
--   dead_chosen()            the numbers that a call is about: ARGV from 4 on; or without them the first
--                            ARGV[2] of those that failed until ARGV[3] (0: until now)
--   dead_remove(number)      takes one off; 1, or 0 if there was none
--   dead_reply(done)         {done, left of those, until when they failed}
local dead_until = tonumber(ARGV[3]) > 0 and ARGV[3] or text_of(at)
local function dead_read(number)
  local letter = redis.call('HGET', pool .. 'dead', number)
  if not letter then
    return nil
  end
  local ms, tries, crashes, key_size, cause_size, from =
    string.match(letter, '^(%d+) (%d+) (%d+) (%d+) (%d+) ()')
  local cause_from = from + tonumber(key_size)
  local packed_from = cause_from + tonumber(cause_size)
  local key, cause =
    string.sub(letter, from, cause_from - 1), string.sub(letter, cause_from, packed_from - 1)
  return ms, tries, crashes, key, cause, string.sub(letter, packed_from)
end
local function dead_chosen()
  if #ARGV > 3 then
    return { unpack(ARGV, 4) }
  end
  return redis.call('ZRANGE', pool .. 'failed', '-inf', dead_until, 'BYSCORE', 'LIMIT', 0, ARGV[2])
end
local function dead_remove(number)
  redis.call('ZREM', pool .. 'failed', number)
  return redis.call('HDEL', pool .. 'dead', number)
end
local function dead_reply(done)
  local left = #ARGV > 3 and 0 or redis.call('ZCOUNT', pool .. 'failed', '-inf', dead_until)
  return { done, left, dead_until }
end
