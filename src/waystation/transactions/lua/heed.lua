#!lua flags=allow-oom
-- repeatable
-- Applies what waits in the queue of admin events of a node group, for processes that make no claims.
-- A second run applies the next ones, which is as well.
-- KEYS  1 record log of cell 0
-- ARGV  1 node group
-- Reply number of events that there were, ten at most
--- @include "store/_now"
--- @include "_cell"
--- @include "_counts"
--- @include "_admin"
local events = admin_apply(ARGV[1])
counts_write(now())
return events
