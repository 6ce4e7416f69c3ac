-- Whether a caller still holds a transaction. An epoch has one holder; `commits` tells a repeated
-- call from a new one.
--   owned(head, epoch, commits)  for a move, which names the number that it will have: nil to go on,
--                                'known' if it was applied already, 'refused' for everyone else
--   holds(head, epoch, commits)  for what is no move and names the present number: true or false
local function owned(head, epoch, commits)
  if head.epoch ~= tonumber(epoch) then
    return 'refused'
  end
  local coming = tonumber(commits)
  if head.commits == coming then
    return 'known'
  end
  if head.state ~= 'running' or head.commits + 1 ~= coming then
    return 'refused'
  end
end
local function holds(head, epoch, commits)
  return head.state == 'running' and head.epoch == tonumber(epoch)
    and head.commits == tonumber(commits)
end
