-- admin_apply(group): applies what waits in the queue of admin events to the settings of a node group,
-- up to ten, and calls the nodes. Both are in cell 0 alone. Include before it: cell, counts.
-- Returns how many there were, and whether the node group is paused.
local function admin_apply(group)
  if cell ~= '{tx.0}:' then
    return 0, false
  end
  local settings = cell .. 'nodeGroupH:' .. group
  local events = redis.call('LPOP', cell .. 'qAdminL:' .. group, 10) or {}
  local applied = false
  for _, event in ipairs(events) do
    local field, value = string.match(event, '^set ([%l_]+) (%S+)$')
    if field and field ~= 'revision' then
      redis.call('HSET', settings, field, value)
      applied = true
    else
      count('admin:::unreadable')
    end
  end
  if applied then
    redis.call('HINCRBY', settings, 'revision', 1)
    -- Only a hint: a user of the store who may not publish must not fail after the writes above.
    redis.pcall('PUBLISH', 'waystation.{nodes}', group)
  end
  return #events, redis.call('HGET', settings, 'paused') == '1'
end
