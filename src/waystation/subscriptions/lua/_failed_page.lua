-- Pages of `failed`, the oldest failure first, that hold while it changes. Include "shard" before it.
--   failed_item(name, ms)   a table: name, ms, number, and group, nil for one that stands alone
--   failed_page(after, before, cursor, most)
--                           up to `most` that failed from `after` on and before `before` (0: whenever),
--                           behind a cursor or '' for the first
--   cursor_of(item)         the cursor behind it
local function failed_item(name, ms)
  local number, group = string.match(name, '^(%d+) (.*)$')
  return { name = name, ms = tonumber(ms), number = tonumber(number or name), group = group }
end
local function cursor_of(item)
  return text_of(item.ms) .. '.' .. text_of(item.number)
end
local function rank_behind(ms, number)
  -- Of one time the order is that of the names, and numbers decide it, as text. So a search by halves
  -- finds the place, whether what the cursor names is still there or not.
  local key = shard .. 'failed'
  local low = redis.call('ZCOUNT', key, '-inf', '(' .. ms)
  local high = redis.call('ZCOUNT', key, '-inf', ms)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if string.match(redis.call('ZRANGE', key, middle, middle)[1], '^%d+') <= number then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end
local function failed_page(after, before, cursor, most)
  local key, items = shard .. 'failed', {}
  local ms, number = string.match(cursor, '^(%d+)%.(%d+)$')
  if cursor ~= '' and not ms then
    error('not a cursor: ' .. cursor)
  end
  local first = redis.call('ZCOUNT', key, '-inf', '(' .. text_of(after))
  if ms then
    first = math.max(first, rank_behind(ms, number))
  end
  local last = redis.call('ZCOUNT', key, '-inf', before > 0 and '(' .. text_of(before) or '+inf')
  last = math.min(last, first + most) - 1
  if last >= first then
    local found = redis.call('ZRANGE', key, first, last, 'WITHSCORES')
    for i = 1, #found, 2 do
      items[#items + 1] = failed_item(found[i], found[i + 1])
    end
  end
  return items
end
