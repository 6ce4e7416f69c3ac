#!lua
-- repeatable
-- Publishes messages in order, under a bound of the backlog, each with what is to be sent for it.
-- KEYS  1 clock of the channel
-- ARGV  1 prefix of message keys, 2 prefix of deduplication entries, 3 TTL in seconds,
--       4 wake-up topic, 5 most messages kept (0 = no bound), 6 'refuse' | 'drop_oldest',
--       7 number of lanes, then the lanes; then for each message: id, body, an item per lane
-- Reply {outcome, clock, outcome, clock, ...}: 'accepted', 'duplicate', or 'full' with an empty clock
--- @include "now"
--- @include "append"
--- @include "outbox_add"
local CLOCK_MAX, CLOCK_MIN = 9007199254740991, -9007199254740991
local prefix, ids, ttl, backlog = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
local lanes = tonumber(ARGV[7])
local at = now()

local function oldest_kept()
  -- The message that has to go, or to be gone, before another comes: `backlog` clocks back.
  local clock = tonumber(redis.call('GET', KEYS[1]) or '0')
  local oldest = clock + 1 - backlog
  if oldest < CLOCK_MIN then
    oldest = CLOCK_MAX - (CLOCK_MIN - oldest - 1)
  end
  return string.format('%s%.0f', prefix, oldest)
end

local reply, woken = {}, false
for first = 8 + lanes, #ARGV, 2 + lanes do
  local id, body = ARGV[first], ARGV[first + 1]
  local outcome, clock = 'full', ''
  local known = redis.call('EXISTS', ids .. id) == 1
  local full = backlog > 0 and not known and redis.call('EXISTS', oldest_kept()) == 1
  if full and ARGV[6] == 'drop_oldest' then
    redis.call('UNLINK', oldest_kept())
    full = false
  end
  if not full then
    outcome, clock = append(KEYS[1], ids .. id, prefix, body, ttl)
    if outcome == 'accepted' then
      woken = true
      for lane = 1, lanes do
        outbox_add(ARGV[7 + lane], id, ARGV[first + 1 + lane], at)
      end
    end
  end
  reply[#reply + 1] = outcome
  reply[#reply + 1] = clock
end
if woken then
  -- Only a hint: a user of the store who may not publish must not fail after the writes above.
  redis.pcall('PUBLISH', ARGV[4], 'new message')
end
return reply
