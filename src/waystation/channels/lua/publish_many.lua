#!lua
-- repeatable
-- Publishes messages in order, under a bound of the backlog, each with what is to be sent for it.
-- KEYS  1 clock of the channel
-- ARGV  1 prefix of message keys, 2 prefix of deduplication entries, 3 TTL in seconds,
--       4 wake-up topic, 5 most messages kept (0 = no bound), 6 'refuse' | 'drop_oldest',
--       7 most items that wait in a lane, 8 prefix of item names, 9 number of lanes, then the lanes;
--       then for each message: id, and body, which is also the item that goes to each lane
-- Reply {outcome, clock, outcome, clock, ...}: 'accepted', 'duplicate', or 'full' with an empty clock;
--       or {'closed', what the gate of each lane says} and nothing was written
--- @include "_clock"
--- @include "_reach"
-- Drops of one call beyond one for each message: a bound that was lowered is reached step by step.
local MORE_DROPS_MAX = 1000
local LOOKS_AT_ONCE = 500
local prefix, ids, ttl, backlog = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
local first_lane, last_lane, waiting_max = 10, 9 + tonumber(ARGV[9]), tonumber(ARGV[7])
local count = (#ARGV - last_lane) / 2
local newest = tonumber(redis.call('GET', KEYS[1]) or nil)

local function field(message, number)
  return ARGV[last_lane + (message - 1) * 2 + number]
end
local function name(steps)
  return prefix .. text(before(newest, steps))
end
local function is_kept(steps)
  return redis.call('EXISTS', name(steps)) == 1
end
local function count_kept()
  if not newest then
    return 0
  end
  -- The two looks that most often tell it, at a channel that is just full.
  if is_kept(backlog - 1) and not is_kept(backlog) then
    return backlog
  end
  return reach(is_kept)
end

-- First everything that is only read. Gates: nothing is added to a lane that nobody looks at.
--- @include "delivery/_check_gates"
-- Ids: the clock of each that is known.
local clocks = {}
for start = 1, count, LOOKS_AT_ONCE do
  local names = {}
  for message = start, math.min(count, start + LOOKS_AT_ONCE - 1) do
    names[#names + 1] = ids .. field(message, 1)
  end
  for place, clock in ipairs(redis.call('MGET', unpack(names))) do
    clocks[field(start + place - 1, 1)] = clock
  end
end
local kept = backlog > 0 and count_kept() or 0
local room = (backlog > 0 and ARGV[6] == 'refuse') and backlog - kept or count

local reply, accepted, position = {}, {}, newest or 0
for message = 1, count do
  local id, outcome = field(message, 1), 'duplicate'
  if not clocks[id] and #accepted >= room then
    outcome = 'full'
  elseif not clocks[id] then
    outcome, position = 'accepted', after(position, 1)
    accepted[#accepted + 1], clocks[id] = message, text(position)
  end
  reply[#reply + 1] = outcome
  reply[#reply + 1] = clocks[id] or ''
end

-- Then everything that is written, the clock first: no clock is ever given to two messages.
redis.call('EXPIRE', KEYS[1], ttl, 'GT')
if #accepted == 0 then
  return reply
end
if newest then
  redis.call('SET', KEYS[1], text(position), 'KEEPTTL')
else
  redis.call('SET', KEYS[1], text(position), 'EX', ttl)
end
local excess = backlog > 0 and math.max(0, kept + #accepted - backlog) or 0
local drops = math.min(excess, kept, #accepted + MORE_DROPS_MAX)
for steps = kept - 1, kept - drops, -1 do
  redis.call('UNLINK', name(steps))
end
for number, message in ipairs(accepted) do
  local id = field(message, 1)
  redis.call('SET', ids .. id, clocks[id], 'EX', ttl)
  -- Those that the rest of their own batch pushes out again are never there.
  if number > excess - kept then
    redis.call('SET', prefix .. clocks[id], field(message, 2), 'EX', ttl)
  end
  local item_name, item = ARGV[8] .. id, field(message, 2)
--- @include "delivery/_add"
end
-- Only a hint: a user of the store who may not publish must not fail after the writes above.
redis.pcall('PUBLISH', ARGV[4], 'new message')
return reply
