#!lua
-- repeatable
-- Publish messages in order and atomically, under the backlog limit of the channel.
-- Adds the accepted messages to the outbox queues of the channel's webhooks.
-- A second run finds the ids and replies `duplicate`.
--
-- KEYS    1 clock of the channel
-- ARGV    1 prefix of message keys, 2 prefix of deduplication entries, 3 expiry in seconds,
--         4 pub/sub topic, 5 maximum number of stored messages; 0: unlimited,
--         6 'refuse' | 'drop_oldest', 7 maximum number of items in a queue, 8 prefix of item names,
--         9 record log or '', 10 policy and names for its entries,
--         11 number of queues, then the queues,
--         then two per message: id and body, which is also the outbox item
-- Reply   {outcome, clock, outcome, clock, ...}
--           'accepted'     clock of the message
--           'duplicate'    clock of the first message with this id; its body is unchanged
--           'full'         empty clock: the message exceeds the limit and the policy is 'refuse'
--         {'closed', state of each queue's gate}: nothing was written; open the queues and repeat
-- Errors  DAMAGED <key>, nothing written: the clock or a deduplication entry is not an integer
--- @include "_clock"
--- @include "_read_strings"
--- @include "_reach"
-- Number of messages that one call drops in addition to one per new message, so that a lowered
-- limit is reached in several short calls.
local MORE_DROPS_MAX = 1000
local IDS_PER_READ = 500
local prefix, ids, ttl, backlog = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
local first_lane, last_lane, waiting_max = 12, 11 + tonumber(ARGV[11]), tonumber(ARGV[7])
local count = (#ARGV - last_lane) / 2
local newest = read_clocks()

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
  -- Two checks suffice for a channel that is exactly full, the usual case under a limit.
  if is_kept(backlog - 1) and not is_kept(backlog) then
    return backlog
  end
  return reach(is_kept)
end

-- Read everything first. A closed queue ends the script, because no deliverer reads it.
--- @include "delivery/_check_gates"
-- Clocks of the ids that the channel has.
local clocks = {}
for start = 1, count, IDS_PER_READ do
  local names = {}
  for message = start, math.min(count, start + IDS_PER_READ - 1) do
    names[#names + 1] = ids .. field(message, 1)
  end
  for place, clock in ipairs(read_strings(names)) do
    if clock and not string.find(clock, '^%-?%d+$') then
      damaged(names[place])
    end
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

-- Write, the clock first, so that no clock is ever given to two messages.
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
  -- Do not store messages that later messages of the same batch push out.
  if number > excess - kept then
    redis.call('SET', prefix .. clocks[id], field(message, 2), 'EX', ttl)
  end
  local item_name, item = ARGV[8] .. id, field(message, 2)
--- @include "delivery/_add"
end
-- pcall, because a store user without permission to publish must not fail after the writes.
redis.pcall('PUBLISH', ARGV[4], 'new message')
if ARGV[9] ~= '' and redis.call('EXISTS', ARGV[9] .. ':head') == 1 then
--- @include "_record"
  local events = {}
  if drops > 0 then
    events[1] = 'dropped ' .. text(before(newest, kept - 1)) .. ' ' .. text(before(newest, kept - drops))
  end
  for _, message in ipairs(accepted) do
    events[#events + 1] = message
  end
  if excess > kept then
    -- Messages that later messages of the same batch pushed out.
    local last = accepted[excess - kept]
    events[#events + 1] = 'dropped ' .. clocks[field(accepted[1], 1)] .. ' ' .. clocks[field(last, 1)]
  end
  record_write(ARGV[9], ARGV[10], now(), #events, function(i)
    local message = events[i]
    if type(message) == 'string' then
      return record_event(message)
    end
    return published(clocks[field(message, 1)], ttl, field(message, 2), ARGV[10])
  end)
end
return reply
