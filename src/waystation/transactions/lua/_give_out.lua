-- What is due and not in the store, for wake_due and expire. Include before it: cell, counts, sets,
-- miss.
--   gone(id)     gathers one that has no head
--   give_out(set, at, load_ms, loads, busy_ms)
--                gives them to the caller to load, `loads` at most; the new time is the claim, and the
--                others come soon again. What is there and no transaction goes off the set. Before
--                sets_write; returns the reply: two places, then ids and nonces
local without = {}
local function gone(id)
  without[#without + 1] = id
end
local function give_out(set, at, load_ms, loads, busy_ms)
  local given, reply, present = {}, { 0, 0 }, any_present(without)
  for _, id in ipairs(without) do
    if present and not absent(id) then
      off(set, id)
      count('dropped:::unreadable')
    elseif #given < tonumber(loads) then
      given[#given + 1] = id
      put(set, at + tonumber(load_ms), id)
    else
      put(set, at + tonumber(busy_ms), id)
    end
  end
  for i, nonce in ipairs(#given > 0 and miss(at, given) or {}) do
    reply[2 * i + 1], reply[2 * i + 2] = given[i], nonce
  end
  return reply
end
