#!lua flags=allow-oom
-- repeatable
-- Keeps what a worker holds from being rescued, also where the lease is over and nobody has noticed.
-- KEYS  1 record log
-- ARGV  1 length of the lease in ms, then for each: id, epoch
-- Reply {ms, ids that another holds or that do not run any more, ids that are to end}
--- @include "store/_now"
--- @include "_cell"
--- @include "_head"
--- @include "_sets"
local at = now()
local lease_end, lost, stopping = at + tonumber(ARGV[1]), {}, {}
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local head = head_of(id)
  if head and head.state == 'running' and head.epoch == tonumber(ARGV[i + 1]) then
    put('leaseZ', lease_end, id)
    if flagged(head, 'ct') then
      stopping[#stopping + 1] = id
    end
  else
    lost[#lost + 1] = id
  end
end
sets_write()
return { string.format('%.0f', at), lost, stopping }
