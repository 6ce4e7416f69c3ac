-- before(): the clock so many steps before a position, around the end of the range if need be.
local function before(position, steps)
  if position >= CLOCK_MIN + steps then
    return position - steps
  end
  return CLOCK_MAX - (steps - (position - CLOCK_MIN) - 1)
end
-- reach(matches): how many of the newest messages match, asked by the steps that they lie back. What
-- is published later expires later, so everything nearer than a match is one too: the steps are
-- doubled until one does not match, then the distance is halved. That is a few dozen looks.
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
