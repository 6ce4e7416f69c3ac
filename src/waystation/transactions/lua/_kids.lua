-- The counter of an open Parallel, the field `kids` of the parent. Its first failure is '-' while
-- there is none.
--   kids_read(text)              the words as a table; nil without a counter
--   kids_text(kids)              the table as words
--   child_id(parent, round, n)   the id of a child, counted from 1; `names.child_id` makes the same
local function kids_read(text)
  local round, total, created, done, policy, swept, failed =
    string.match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%S+)$')
  return round and {
    round = round, total = tonumber(total), created = tonumber(created), done = tonumber(done),
    policy = policy, swept = tonumber(swept), failed = failed
  } or nil
end
local function kids_text(kids)
  return string.format(
    '%s %d %d %d %s %d %s', kids.round, kids.total, kids.created, kids.done, kids.policy,
    kids.swept, kids.failed
  )
end
local function child_id(parent, round, n)
  local digest = redis.sha1hex(parent .. ' ' .. round .. ' ' .. n)
  return string.sub(parent, 1, 7) .. string.sub(digest, 1, 36)
end
