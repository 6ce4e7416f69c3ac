#!lua flags=allow-oom
-- repeatable
-- Gives a worker messages of its own keys, one of each, under a lease. Nothing leaves its list.
-- Asked again with the same token, as after a lost reply: the same ones.
-- KEYS  1 head
-- ARGV  1 terms, 2 uid, 3 session, 4 token, 5 most, 6 bytes at most, 7 length of the lease in ms
-- Reply {missing | unknown | evicted}, or {state, ms until the next can be taken or -1, then per message:
--       key, epoch, number, tries, crashes, enqueued ms, envelope}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
--- @include "_pick"
--- @include "_heads"
--- @include "_moves"
--- @include "_over"
local refused = refusal()
if refused then
  return { refused }
end
local uid, token, bytes_left = ARGV[2], ARGV[4], tonumber(ARGV[6])
local worker, why = caller(uid, ARGV[3])
if not worker then
  return { why }
end
access(uid)
adopt(100)
local reply = { worker.state, 0 }
local function give(key, entry)
  local number, ms, packed = head_of(key)
  if #reply > 2 and #packed > bytes_left then
    return false
  end
  bytes_left = bytes_left - #packed
  for _, word in ipairs({ key, entry.epoch, number, entry.tries, entry.crashes, text_of(ms), packed }) do
    reply[#reply + 1] = word
  end
  return true
end
if worker.call == token then
  for _, key in ipairs(redis.call('ZRANGE', pool .. 'taken:' .. uid, 0, -1)) do
    local entry = entry_read(key)
    if entry.token == token then
      give(key, entry)
    end
  end
else
  over_free(uid, 100)
  local most = math.min(tonumber(ARGV[5]), taken_max - redis.call('ZCARD', pool .. 'taken:' .. uid))
  local keys = {}
  if most > 0 then
    keys = redis.call('ZRANGE', pool .. 'ready:' .. uid, '-inf', text_of(at), 'BYSCORE', 'LIMIT', 0, most)
  end
  for _, key in ipairs(keys) do
    local entry = entry_read(key)
    if not give(key, entry) then
      break
    end
    head_take(key, entry, token, tonumber(ARGV[7]))
  end
  if #reply > 2 then
    worker.call = token
    worker_write(uid)
  end
end
local first = redis.call('ZRANGE', pool .. 'ready:' .. uid, 0, 0, 'WITHSCORES')
reply[2] = first[2] and text_of(math.max(0, tonumber(first[2]) - at)) or -1
finish()
return reply
