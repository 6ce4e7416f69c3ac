-- The switches of a transaction, as they are kept: `approved="yes",!count=3,!gone`. A `!` marks a change
-- that no step has acknowledged; a name without a value one that was deleted while a step ran.
--   switches_read(text)             a table: order (names), value and unseen by name
--   switches_text(switches)         as they are kept
--   switches_seen(switches, text)   what a step has looked at, without `!`: acknowledged where it is
--                                   still that value
--   switches_unseen(switches, name) whether that one has changed since
--   switches_clear(switches)        acknowledges all
local function switches_read(text)
  local switches = { order = {}, value = {}, unseen = {} }
  for mark, name, value in string.gmatch(text, '(!?)([^,=!]+)=?([^,]*)') do
    table.insert(switches.order, name)
    switches.value[name], switches.unseen[name] = value, mark == '!'
  end
  return switches
end
local function switches_text(switches)
  local parts = {}
  for _, name in ipairs(switches.order) do
    local value, unseen = switches.value[name], switches.unseen[name]
    if value ~= '' then
      table.insert(parts, (unseen and '!' or '') .. name .. '=' .. value)
    elseif unseen then
      table.insert(parts, '!' .. name)
    end
  end
  return table.concat(parts, ',')
end
local function switches_unseen(switches, name)
  return switches.unseen[name] or false
end
local function switches_seen(switches, text)
  local seen = switches_read(text)
  for _, name in ipairs(seen.order) do
    if switches.value[name] == seen.value[name] then
      switches.unseen[name] = false
    end
  end
end
local function switches_clear(switches)
  switches.unseen = {}
end
