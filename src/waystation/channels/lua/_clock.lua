--- @include "_damaged"
-- Clocks number the messages of a channel. They are integers of the range that Lua represents
-- exactly; after CLOCK_MAX follows CLOCK_MIN.
local CLOCK_MAX, CLOCK_MIN = 9007199254740991, -9007199254740991
-- text(number) returns a clock as it is written in keys and values, without an exponent.
local function text(number)
  return string.format('%.0f', number)
end
-- is_clock(value) returns true if a stored value is a clock.
local function is_clock(value)
  local number = type(value) == 'string' and string.find(value, '^%-?%d+$') and tonumber(value)
  return number and number >= CLOCK_MIN and number <= CLOCK_MAX
end
-- read_clock(key) returns the clock or cursor of a key as a number; nil if the key does not exist.
local function read_clock(key)
  local value = redis.pcall('GET', key)
  if not value then
    return nil
  end
  if not is_clock(value) then
    damaged(key)
  end
  return tonumber(value)
end
-- read_strings(keys) returns the values of keys, false where a key does not exist. MGET returns the
-- same for a key of another type, so that the missing ones are checked.
local function read_strings(keys)
  local values, missing = redis.call('MGET', unpack(keys)), {}
  for i = 1, #keys do
    if not values[i] then
      missing[#missing + 1] = keys[i]
    end
  end
  if #missing > 0 and redis.call('EXISTS', unpack(missing)) > 0 then
    for _, key in ipairs(missing) do
      if redis.call('EXISTS', key) == 1 then
        damaged(key)
      end
    end
  end
  return values
end
-- after(position, steps) returns the clock that follows a position by a number of steps.
local function after(position, steps)
  if position <= CLOCK_MAX - steps then
    return position + steps
  end
  return CLOCK_MIN + (steps - (CLOCK_MAX - position) - 1)
end
