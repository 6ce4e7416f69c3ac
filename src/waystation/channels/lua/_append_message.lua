--- @include "_damaged"
-- append_message(clock_key, id_key, prefix, body, ttl) stores a message under the next clock, unless
-- the deduplication entry of its id exists. Return 'accepted' or 'duplicate', and the clock of the
-- message that has the id.
local function append_message(clock_key, id_key, prefix, body, ttl)
  local known = redis.pcall('GET', id_key)
  if known then
    if type(known) ~= 'string' or not string.find(known, '^%-?%d+$') then
      damaged(id_key)
    end
    redis.call('EXPIRE', clock_key, ttl, 'GT')
    return 'duplicate', known
  end
  local number = redis.pcall('INCR', clock_key)
  if type(number) ~= 'number' then
    damaged(clock_key)
  elseif number > 9007199254740991 or number < -9007199254740990 then
    -- Beyond the range that Lua represents exactly. After its end, the clock continues at the other
    -- end. GET, because Lua also reads the next larger integers as this number.
    if redis.call('GET', clock_key) ~= '9007199254740992' then
      redis.call('DECR', clock_key)
      damaged(clock_key)
    end
    number = -9007199254740991
    redis.call('SET', clock_key, '-9007199254740991', 'KEEPTTL')
  elseif number == 1 then
    -- INCR has created the clock, or this is the first message after the first subscriber.
    redis.call('EXPIRE', clock_key, ttl, 'NX')
  end
  -- GT, because a rule with a shorter expiry must not end the clock before an older subscriber.
  redis.call('EXPIRE', clock_key, ttl, 'GT')
  local clock = string.format('%.0f', number)
  redis.call('SET', id_key, clock, 'EX', ttl)
  redis.call('SET', prefix .. clock, body, 'EX', ttl)
  return 'accepted', clock
end
