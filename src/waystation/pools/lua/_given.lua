-- What a worker says of a message that it was given. Include "worker" and "entry" before it.
--   given_state(uid, key, epoch, number, token)   `given`: it is the worker's, and taken by that token;
--                          `known`: it was settled before; `freed`: it is the head, and nobody has it;
--                          `lost`: it is another's by now
local function given_state(uid, key, epoch, number, token)
  local entry = entry_read(key)
  local first = entry and head_of(key)
  if not first or tonumber(first) > tonumber(number) then
    return 'known'
  elseif first ~= number or entry.owner ~= uid or entry.epoch ~= epoch then
    return 'lost'
  elseif entry.token == '-' then
    return 'freed'
  end
  return entry.token == token and 'given' or 'lost'
end
-- Whoever tells of a message is there; one of another session is not.
local function given_access(uid, session)
  if caller(uid, session) then
    access(uid)
  end
end
