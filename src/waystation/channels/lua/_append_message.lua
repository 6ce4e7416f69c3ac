--- @include "_damaged"
-- append_message(clock_key, id_key, prefix, body, ttl) stores a message under the next clock, unless
-- the deduplication entry of its id exists. Return 'accepted' or 'duplicate', and the clock of the
-- message that has the id.
local function append_message(clock_key, id_key, prefix, body, ttl)
  local known = redis.pcall('GET', id_key)
  local clock = redis.pcall('GET', clock_key)
  if known then
    if type(known) ~= 'string' or not string.find(known, '^%-?%d+$') then
      damaged(id_key)
    end
    redis.call('EXPIRE', clock_key, ttl, 'GT')
    return 'duplicate', known
  end
  if not clock then
    clock = '1'
    redis.call('SET', clock_key, clock, 'EX', ttl)
  else
    -- The range in which Lua represents integers exactly.
    local number = type(clock) == 'string' and tonumber(clock)
    if not number or number > 9007199254740991 or number < -9007199254740991 then
      damaged(clock_key)
    elseif clock == '9007199254740991' then
      clock = '-9007199254740991'
      redis.call('SET', clock_key, clock, 'KEEPTTL')
    else
      local following = redis.pcall('INCR', clock_key)
      if type(following) ~= 'number' then
        damaged(clock_key)
      end
      clock = string.format('%.0f', following)
    end
    -- GT, because a rule with a shorter expiry must not end the clock before an older subscriber.
    redis.call('EXPIRE', clock_key, ttl, 'GT')
  end
  redis.call('SET', id_key, clock, 'EX', ttl)
  redis.call('SET', prefix .. clock, body, 'EX', ttl)
  return 'accepted', clock
end
