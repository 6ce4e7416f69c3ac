-- Heads that an operation settles while somebody may work on them. Include "entry" and "heads" before.
--   withdraw(member, group)   off `due` and `taken`: a commit for it will find it settled
--   withdraw_write()          those that were offered to other workers than the owner have ended, which
--                             the owner is told by `ended`
local withdrawn = {}
local function withdraw(member, group)
  off('due', member)
  off('taken', member)
  withdrawn[#withdrawn + 1] = { member = member, group = group }
end
local function withdraw_write()
  for _, each in ipairs(withdrawn) do
    local offered = redis.call('HDEL', shard .. 'tokens', each.member)
      + redis.call('LREM', shard .. 'ready', 0, each.member)
    if offered > 0 then
      redis.call('RPUSH', shard .. 'ended', each.member .. ' ' .. state_of(each.group))
    end
  end
end
