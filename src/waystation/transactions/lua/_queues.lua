-- queues(group): the lists of a node group that a claim serves, in order. What goes on comes before
-- what begins. Include "cell" before it.
local function queues(group)
  return { cell .. 'qOutL:' .. group, cell .. 'qInL:' .. group }
end
