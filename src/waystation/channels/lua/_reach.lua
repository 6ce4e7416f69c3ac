-- before(position, steps) returns the clock that precedes a position by a number of steps.
local function before(position, steps)
  if position >= CLOCK_MIN + steps then
    return position - steps
  end
  return CLOCK_MAX - (steps - (position - CLOCK_MIN) - 1)
end
-- reach(matches) returns how many of the newest messages match. `matches` is called with the number of
-- steps before the newest one. A later message expires later, so that all messages after a match
-- match too, and a search by doubling and halving finds the number in a few dozen calls.
local function reach(matches)
  local inside, outside = 0, 1
  while matches(outside - 1) do
    inside, outside = outside, outside * 2
  end
  while outside - inside > 1 do
    local middle = math.floor((inside + outside) / 2)
    if matches(middle - 1) then
      inside = middle
    else
      outside = middle
    end
  end
  return inside
end
