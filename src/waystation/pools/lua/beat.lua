#!lua flags=allow-oom
-- repeatable
-- A worker says that it is there, and hears what it has.
-- KEYS  1 head
-- ARGV  1 terms, 2 uid, 3 session
-- Reply {missing | unknown | evicted}, or {state, keys, messages}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
--- @include "_pick"
--- @include "_heads"
--- @include "_moves"
local refused = refusal()
if refused then
  return { refused }
end
local uid = ARGV[2]
local worker, why = caller(uid, ARGV[3])
if not worker then
  return { why }
end
access(uid)
adopt(100)
finish()
local messages, keys = load_of(uid)
return { worker.state, keys, messages }
