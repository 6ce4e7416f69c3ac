--- @include "_damaged"
-- Clocks number the messages of a channel. They are integers of the range that Lua represents
-- exactly; after CLOCK_MAX follows CLOCK_MIN.
local CLOCK_MAX, CLOCK_MIN = 9007199254740991, -9007199254740991
-- clock_number(value, key) returns the value of a key as a number; nil if the key does not exist.
local function clock_number(value, key)
  if not value then
    -- MGET returns false for a key of another type too.
    if redis.call('EXISTS', key) == 1 then
      damaged(key)
    end
    return nil
  end
  -- A pattern, because tonumber also accepts '1.5', '1e3' and '0x10'.
  local number = string.find(value, '^%-?%d+$') and tonumber(value)
  if not number or number > CLOCK_MAX or number < CLOCK_MIN then
    damaged(key)
  end
  return number
end
-- read_clocks() returns the clock of the channel, and the cursor of the subscriber if the script has
-- its key.
local function read_clocks()
  local values = redis.call('MGET', unpack(KEYS))
  return clock_number(values[1], KEYS[1]), KEYS[2] and clock_number(values[2], KEYS[2])
end
