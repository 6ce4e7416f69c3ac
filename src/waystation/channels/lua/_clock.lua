-- Clocks: integers that go round at the ends of the range that Lua can count on.
local CLOCK_MAX, CLOCK_MIN = 9007199254740991, -9007199254740991
-- text(): a clock as it is written in keys and values, without an exponent.
local function text(number)
  return string.format('%.0f', number)
end
-- after(): the clock so many steps after a position, around the end of the range if need be.
local function after(position, steps)
  if position <= CLOCK_MAX - steps then
    return position + steps
  end
  return CLOCK_MIN + (steps - (CLOCK_MAX - position) - 1)
end
