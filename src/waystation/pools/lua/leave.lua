#!lua flags=allow-oom
-- repeatable
-- A worker goes: all its keys move, what it had taken is given back and not counted.
-- KEYS  1 head
-- ARGV  1 terms, 2 uid, 3 session (0: an operator's), 4 most keys to move
-- Reply {missing | unknown}, or {keys left}
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
worker.state = 'leaving'
worker_write(uid)
live_remove(uid)
local _, left = worker_move(uid, tonumber(ARGV[4]))
finish()
return { left }
