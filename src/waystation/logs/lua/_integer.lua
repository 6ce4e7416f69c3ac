-- log_integer(value, key) returns a field of a head as a number. The script ends with the error
-- 'DAMAGED_LOG <key>' if the value is no integer from 0 to 2^53, which Lua represents exactly.
local function log_integer(value, key)
  local number = tonumber(value)
  if not number or number < 0 or number >= 9007199254740992 or number % 1 ~= 0 then
    error({ err = 'DAMAGED_LOG ' .. key })
  end
  return number
end
