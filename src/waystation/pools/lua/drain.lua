#!lua flags=allow-oom
-- repeatable
-- A worker gets no more keys, and those go of which nothing is taken; the others go when that is settled.
-- KEYS  1 head
-- ARGV  1 terms, 2 uid, 3 session (0: an operator's), 4 most keys to move
-- Reply {missing | unknown}, or {keys left that could go, keys of which a message is taken}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
--- @include "_pick"
--- @include "_heads"
--- @include "_moves"
--- @include "_many"
local refused = refusal()
if refused then
  return { refused }
end
local uid, session = ARGV[2], ARGV[3]
local worker = worker_read(uid)
if not worker or (session ~= '0' and session ~= worker.session) then
  return { 'unknown' }
end
if worker.state == 'live' then
  worker.state = 'draining'
  worker_write(uid)
  live_remove(uid)
  -- It may be waiting for something to take.
  hints[uid] = true
end
local _, left = worker_move(uid, tonumber(ARGV[4]))
finish()
return { left, redis.call('ZCARD', pool .. 'taken:' .. uid) }
