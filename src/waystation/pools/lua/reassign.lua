#!lua flags=allow-oom
-- repeatable
-- Moves the keys of a worker that is stale, or of any if an operator asked; some at a time.
-- KEYS  1 head
-- ARGV  1 terms, 2 uid, 3 most keys to move, 4 stale | asked
-- Reply {missing | unknown | not_stale}, or {moved, left}
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
local uid = ARGV[2]
local worker = worker_read(uid)
if not worker then
  return { 'unknown' }
end
if worker.state == 'live' or worker.state == 'draining' then
  if ARGV[4] ~= 'asked' and not is_stale(uid) then
    return { 'not_stale' }
  end
  evict(uid)
end
local moved, left = worker_move(uid, tonumber(ARGV[3]))
finish()
return { moved, left }
