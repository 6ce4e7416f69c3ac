-- Which worker gets a key. Include "load" before it.
--   pick(key, ignore)   a live worker by the policy of the pool, but not the one to be ignored; '-' when
--                       there is none. Who is met and was not heard of is taken off: it is back with its
--                       next call
local silent
local function usable(uid, ignore)
  if uid == ignore then
    return false
  end
  local seen = seen_of(uid)
  if worker_read(uid).kind == 'agent' or (seen and at - seen <= stale_ms) then
    return true
  end
  silent[uid] = true
  return false
end
local picks = {}
-- The iterator is the name that was picked last: nothing can be off by one, whoever comes or goes.
function picks.round_robin(_, ignore)
  for _, from in ipairs({ head.iterator == '' and '-' or '(' .. head.iterator, '-' }) do
    while true do
      local uid = redis.call('ZRANGEBYLEX', pool .. 'live', from, '+', 'LIMIT', 0, 1)[1]
      if not uid then
        break
      elseif usable(uid, ignore) then
        head.iterator, head.changed = uid, true
        return uid
      end
      from = '(' .. uid
    end
  end
end
function picks.least_loaded(_, ignore)
  load_write()
  local from = 0
  repeat
    local uids = redis.call('ZRANGE', pool .. 'load', from, from + 15)
    for _, uid in ipairs(uids) do
      if uid ~= '-' and redis.call('ZSCORE', pool .. 'live', uid) and usable(uid, ignore) then
        return uid
      end
    end
    from = from + 16
  until #uids < 16
end
function picks.consistent_hash(key, ignore)
  local point = text_of(tonumber(string.sub(redis.sha1hex(key), 1, 12), 16))
  for _, from in ipairs({ point, '-inf' }) do
    local offset = 0
    repeat
      local members =
        redis.call('ZRANGE', pool .. 'ring', from, '+inf', 'BYSCORE', 'LIMIT', offset, 32)
      for _, member in ipairs(members) do
        local uid = string.match(member, ' (.+)$')
        if usable(uid, ignore) then
          return uid
        end
      end
      offset = offset + 32
    until #members < 32
  end
end
local function pick(key, ignore)
  silent = {}
  local uid = picks[policy](key, ignore)
  for each in pairs(silent) do
    live_remove(each)
  end
  return uid or '-'
end
if not picks[policy] then
  error('no such policy: ' .. tostring(policy))
end
