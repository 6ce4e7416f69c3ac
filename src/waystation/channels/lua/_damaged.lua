-- damaged(key) ends the script with an error that names a key of invalid type or content. The client
-- reports it as `store.damaged`. Call it before the first write, because a script is not rolled back.
local function damaged(key)
  error({ err = 'DAMAGED ' .. key })
end
