-- What the archive has done with a state that it was given. Include before it: cell, head, record, sets.
--   set_aside(id, at, cause)   the archive refuses it: it is tried again after a minute, then two, four,
--                              and so on, an hour at most
--   settled(id)                it is off the schedule, and not set aside any more
--   confirm_write()            before sets_write: what goes leaves the store
--   confirm(id, version, read_ms, above, cause, at, cache_ms)
--                              it counts for the version that was read, so it may come late, or twice,
--                              and from anybody. `above`: the archive has that version, or the same one
--                              of something else, since the store has lost something; the state is
--                              lifted over it, or could never be archived
local FAILED, MINUTE_MS = cell .. 'archiveFailedH', 60000
local VERSION_MODE = '^[^ ]+ [^ ]+ (%d+) .* ([^ ]+)$'
local done, removed = {}, {}
local function settled(id)
  off('toArchiveZ', id)
  done[#done + 1] = id
end
local function set_aside(id, at, cause)
  local tries = tonumber(string.match(redis.call('HGET', FAILED, id) or '', '^%d+ (%d+) ')) or 0
  local pause = math.min(MINUTE_MS * 2 ^ math.min(tries, 10), 60 * MINUTE_MS)
  redis.call('HSET', FAILED, id, string.format('%.0f %d %s', at, tries + 1, cause))
  put('toArchiveZ', at + pause, id)
end
local function confirm_write()
  if #done > 0 then
    redis.call('HDEL', FAILED, unpack(done))
  end
  if #removed > 0 then
    redis.call('UNLINK', unpack(removed))
  end
  done, removed = {}, {}
end
local function lift(id, above, at)
  local head = head_of(id)
  head.version = above
  redis.call('HSET', state_key(id), 'head', head_line(head))
  redis.call('PERSIST', state_key(id))
  put('toArchiveZ', at, id)
  record('lifted', id, head)
end
-- When it is due by now: what was moved since it was read was asked for again, or set aside.
local function due_by(id, ms)
  local score = tonumber(redis.call('ZSCORE', cell .. 'toArchiveZ', id) or nil)
  return score and score <= ms
end
local function confirm(id, version, read_ms, above, cause, at, cache_ms)
  local line = redis.pcall('HGET', state_key(id), 'head')
  local found, mode
  if type(line) == 'string' then
    found, mode = string.match(line, VERSION_MODE)
  end
  local same = tonumber(found) == version
  if not found and redis.call('EXISTS', state_key(id)) == 0 then
    settled(id)
  elseif cause ~= '' and (same or mode == 'snapshot' or not found) then
    if due_by(id, read_ms) then
      set_aside(id, at, cause)
    end
  elseif same and above >= version then
    lift(id, above, at)
  elseif mode == 'snapshot' then
    if due_by(id, read_ms - 1) then
      settled(id)
    end
  elseif same and cause == '' then
    if mode == 'remove' then
      removed[#removed + 1] = state_key(id)
    elseif mode == 'ttl' then
      redis.call('PEXPIRE', state_key(id), cache_ms)
    end
    settled(id)
  end
end
