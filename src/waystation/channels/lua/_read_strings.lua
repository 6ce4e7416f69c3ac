--- @include "_damaged"
-- read_strings(keys) returns the values of keys, false where a key does not exist. MGET returns false
-- for a key of another type too, so that keys without a value are checked.
local function read_strings(keys)
  local values, missing = redis.call('MGET', unpack(keys)), nil
  for i = 1, #keys do
    if not values[i] then
      missing = missing or {}
      missing[#missing + 1] = keys[i]
    end
  end
  if missing and redis.call('EXISTS', unpack(missing)) > 0 then
    for _, key in ipairs(missing) do
      if redis.call('EXISTS', key) == 1 then
        damaged(key)
      end
    end
  end
  return values
end
