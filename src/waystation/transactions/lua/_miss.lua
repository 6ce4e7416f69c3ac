-- Load nonces: who may bring back a state that is not in the store. Include before it: cell, now.
-- A nonce is of a counter, not of the caller: a call that is repeated must never bring back one that
-- is past. It is looked for in this minute and the last, so it lives for one to two. There is one only
-- while there is no state: whoever saves the state takes it away.
--   absent(id)             whether there is nothing under that id, as opposed to no hash
--   any_present(ids)       whether there is something under one of them: one command for all
--   miss(at, ids)          the nonce of each, known or new
--   load_nonces(at, ids)   the nonce of each, false without one
--   load_forget(at, ids)   takes them away
--   expected(id)           whether it must be somewhere: anybody may ask for what there never was
local function absent(id)
  return redis.call('EXISTS', state_key(id)) == 0
end
local function any_present(ids)
  local keys = {}
  for i = 1, #ids do
    keys[i] = state_key(ids[i])
  end
  return #keys > 0 and redis.call('EXISTS', unpack(keys)) > 0
end
local function load_keys(at)
  local minute = math.floor(at / 60000)
  return string.format('%sloadH:%d', cell, minute), string.format('%sloadH:%d', cell, minute - 1)
end
local function load_nonces(at, ids)
  local this, last = load_keys(at)
  local found, before = redis.call('HMGET', this, unpack(ids)), redis.call('HMGET', last, unpack(ids))
  for i = 1, #ids do
    found[i] = found[i] or before[i]
  end
  return found
end
local function load_forget(at, ids)
  local this, last = load_keys(at)
  if #ids > 0 then
    redis.call('HDEL', this, unpack(ids))
    redis.call('HDEL', last, unpack(ids))
  end
end
local function expected(id)
  return redis.call('ZSCORE', cell .. 'sleepingZ', id)
    or redis.call('ZSCORE', cell .. 'deadlineZ', id)
end
local function miss(at, ids)
  local found, new, fresh = load_nonces(at, ids), {}, nil
  for i, id in ipairs(ids) do
    if not found[i] then
      fresh = fresh or string.format('%.0f', redis.call('INCR', cell .. 'loadSeq'))
      found[i] = fresh
      new[#new + 1], new[#new + 2] = id, fresh
    end
  end
  if fresh then
    local this = load_keys(at)
    redis.call('HSET', this, unpack(new))
    redis.call('PEXPIRE', this, 180000)
  end
  return found
end
