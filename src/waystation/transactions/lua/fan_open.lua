#!lua
-- repeatable
-- Opens the counter of parallel children, with the state that lists them.
-- From here on a rescue goes on creating them instead of calling the step again.
-- A transaction whose result nobody wants any more is cancelled instead.
-- KEYS  1 record log
-- ARGV  1 terms, then items as in "moves", each with five own words: round, number of children,
--       'cancel_rest' | 'wait_all', bytes that their results may have together, descendants that the
--       tree may have
-- Reply {log end, outcome, version, ...}; outcomes as of commit, and tree-full (the tree would have more
--       descendants than it may have: nothing was written)
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_head"
--- @include "delivery/_put"
--- @include "_reply_put"
--- @include "_due"
--- @include "_owned_by"
--- @include "_queue_push"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_kids"
--- @include "_tree"
--- @include "_complete"
--- @include "_ended"
--- @include "_moves"
local roots = {}

-- Counts the children in the root of their tree; nil where that would have too many descendants.
local function counted(id, total, most)
  local root = roots[id]
  if root == id then
    return total <= most and { 'tree', total } or nil
  end
  local count = tonumber(redis.call('HGET', state_key(root), 'tree') or '0') + total
  if count > most then
    return nil
  end
  redis.call('HSET', state_key(root), 'tree', string.format('%.0f', count))
  return {}
end

local function open(id, _, own)
  local fields = counted(id, tonumber(ARGV[own + 2]), tonumber(ARGV[own + 5]))
  if not fields then
    return 'tree-full'
  end
  local before = kids_read(redis.call('HGET', state_key(id), 'kids'))
  if before then
    -- A result that is there counts as told: those of another round must not be.
    local old = {}
    for n = 1, before.total do
      old[n] = 'result:' .. n
    end
    redis.call('HDEL', state_key(id), 'kids', unpack(old))
  end
  local kids = {
    round = ARGV[own + 1], total = ARGV[own + 2], created = 0, done = 0, policy = ARGV[own + 3],
    swept = 0, failed = '-'
  }
  return 'done', { 'kids', kids_text(kids), 'room', ARGV[own + 4], unpack(fields) }
end

local function unwanted(id, head)
  local root, wanted = id, true
  if flagged(head, 'p') then
    root, wanted = tree_root(id)
  end
  roots[id] = root
  return not wanted and FORSAKEN or nil
end

return moves(now(), 'fanned', 5, open, unwanted)
