-- Who archives a cell. Two locks with the name of a node and a deadline: lock 1 says who archives, lock
-- 2 until when nobody else does. The deadlines decide; keys only expire so that nothing is left behind.
-- Include before it: cell.
--   role(node, at, role_ms, quiet_ms, flight)
--                   the role of who asks, and the ms until it changes: 'archiver'; 'other', somebody
--                   else is; 'grace', for all, since the last one may yet have something under way.
--                   With the flight 'idle' the last one has not, and the role is free; with 'leave'
--                   he gives it up. Both leave it to others for a second
local LOCK_1, LOCK_2 = cell .. 'toArchiveLock1', cell .. 'toArchiveLock2'
local PAUSE_MS = 1000
local function lock_read(key)
  local node, til = string.match(redis.call('GET', key) or '', '^(%S+) (%d+)$')
  return node, tonumber(til) or 0
end
local function lock_write(key, node, til, ms)
  redis.call('SET', key, string.format('%s %.0f', node, til), 'PX', ms + 60000)
end
local function role(node, at, role_ms, quiet_ms, flight)
  local archiver, role_til = lock_read(LOCK_1)
  local last, quiet_til = lock_read(LOCK_2)
  local mine = node == last or node == archiver
  local over = at >= role_til
  if mine and (flight == 'leave' or flight == 'idle' and over and at < quiet_til) then
    redis.call('DEL', LOCK_1, LOCK_2)
    return 'other', PAUSE_MS
  elseif not over and node == archiver then
    return 'archiver', role_til - at
  elseif not over then
    return 'other', math.max(role_til, quiet_til) - at
  elseif at < quiet_til then
    return 'grace', quiet_til - at
  elseif flight == 'leave' then
    return 'other', PAUSE_MS
  end
  lock_write(LOCK_1, node, at + role_ms, role_ms)
  lock_write(LOCK_2, node, at + quiet_ms, quiet_ms)
  return 'archiver', role_ms
end
