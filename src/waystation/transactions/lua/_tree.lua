-- The tree of transactions that Parallels make: a transaction without a parent is its root. All of a
-- tree is in one cell. Include before it: cell, head, kids.
--   tree_root(id)   follows the fields `parent` up. Returns the root, and whether the result of `id` is
--                   still wanted: false, and no root, where an ancestor was cancelled, is past its
--                   deadline, has ended, or has a failed child under `cancel_rest`. Costs one command
--                   per level; TREE_LEVELS_MAX bounds it
--   FORSAKEN        cause of the end of a transaction whose result nobody wants
-- The field `tree` of the root counts the descendants that its open Parallel has listed so far.
local TREE_LEVELS_MAX, FORSAKEN = 256, 'a transaction above it has ended'
local function tree_root(id)
  -- pcall: what is there and no hash must not stop a script after its first writes.
  local link = redis.pcall('HGET', state_key(id), 'parent')
  for _ = 1, TREE_LEVELS_MAX do
    if not link then
      return id, true
    end
    local parent, round = string.match(type(link) == 'string' and link or '', '^(%S+) (%d+) %d+$')
    local found = parent and redis.pcall('HMGET', state_key(parent), 'head', 'kids', 'parent') or {}
    local head, kids = found[1] and head_read(found[1]), kids_read(found[2])
    if not head or head.state == 'complete' or flagged(head, 'ct')
      or not kids or kids.round ~= round
      or (kids.policy == 'cancel_rest' and kids.failed ~= '-') then
      return nil, false
    end
    id, link = parent, found[3]
  end
  return nil, false
end
