-- append(clock_key, id_key, prefix, body, ttl): puts one message under the next clock, unless its id
-- is remembered. Returns 'accepted' or 'duplicate', and the clock of the message.
local function append(clock_key, id_key, prefix, body, ttl)
  local known = redis.call('GET', id_key)
  local clock = redis.call('GET', clock_key)
  if known then
    redis.call('EXPIRE', clock_key, ttl, 'GT')
    return 'duplicate', known
  end
  if not clock then
    clock = '1'
    redis.call('SET', clock_key, clock, 'EX', ttl)
  else
    if clock == '9007199254740991' then
      -- The largest integer that Lua can count on; the clock goes round.
      clock = '-9007199254740991'
      redis.call('SET', clock_key, clock, 'KEEPTTL')
    else
      clock = string.format('%.0f', redis.call('INCR', clock_key))
    end
    -- GT: a shorter expiry set later must not end the clock before an older subscriber.
    redis.call('EXPIRE', clock_key, ttl, 'GT')
  end
  redis.call('SET', id_key, clock, 'EX', ttl)
  redis.call('SET', prefix .. clock, body, 'EX', ttl)
  return 'accepted', clock
end
