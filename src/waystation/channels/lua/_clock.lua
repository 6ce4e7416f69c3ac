--- @include "_read_clocks"
-- text(number) returns a clock as it is written in keys and values, without an exponent.
local function text(number)
  return string.format('%.0f', number)
end
-- after(position, steps) returns the clock that follows a position by a number of steps.
local function after(position, steps)
  if position <= CLOCK_MAX - steps then
    return position + steps
  end
  return CLOCK_MIN + (steps - (CLOCK_MAX - position) - 1)
end
