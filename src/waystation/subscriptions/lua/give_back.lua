#!lua flags=allow-oom
-- repeatable
-- Gives back heads that the owner had taken: due at once, and no attempt is counted.
-- KEYS  1 record log
-- ARGV  1 terms, then members
-- Reply {refused | frozen | missing}, or {how many}
--- @include "store/_now"
--- @include "_shard"
--- @include "_entry"
--- @include "_heads"
--- @include "_heads_write"
local refused = refusal()
if refused then
  return { refused }
end
local at, count, members = now(), 0, { unpack(ARGV, 2) }
if #members > 0 then
  for i, score in ipairs(redis.call('ZMSCORE', shard .. 'taken', unpack(members))) do
    if score and tonumber(score) < 0 then
      off('taken', members[i])
      put('due', members[i], at)
      count = count + 1
    end
  end
end
heads_write()
return { count }
