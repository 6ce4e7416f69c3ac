#!lua flags=allow-oom
-- repeatable
-- Reads transactions, and where they are.
-- KEYS  1 record log
-- ARGV  1 owner or '' for any, 2 how far into a list to look for a place, 3 ms for which one that the
--       archive has, too, is to stay from now on, or 0, 4 'load' or '', then ids
-- Reply per id: {times, place, why it was set aside or '', field, value, field, value, ...}; times are
--       the scores in processingZ, leaseZ, sleepingZ, deadlineZ, toArchiveZ, the first score in the
--       lanes of its replies, and the ms that it stays, '' where there is none; the place in its list
--       is from 0, -1 in none, or too far behind. {load nonce} for one that is not in the store, with
--       'load'. {} for one that is unknown
--- @include "store/_now"
--- @include "_cell"
--- @include "_head"
--- @include "_miss"
local SETS = { 'processingZ', 'leaseZ', 'sleepingZ', 'deadlineZ', 'toArchiveZ' }
local far, cache_ms = tonumber(ARGV[2]), tonumber(ARGV[3])
local reply, missing, places = {}, {}, {}

local function place_of(id, head)
  local list
  if far > 0 and head.state == 'queued' then
    list = (head.queue == 'out' and 'qOutL:' or 'qInL:') .. head.group
  elseif far > 0 and head.state == 'held' then
    list = 'holdL:' .. pipeline_key(head.owner, head.pipeline)
  end
  return list and redis.call('LPOS', cell .. list, id, 'MAXLEN', far) or -1
end

-- Its receivers are behind the first word; what is for a channel or a topic has a letter more.
local function reply_time(id, wanted)
  local first = ''
  for receiver in string.gmatch(wanted or '', ' (%S+)') do
    local letter = string.match(receiver, '^([ct])%.')
    local item = letter and id .. '.' .. letter or id
    local score = redis.call('ZSCORE', cell .. 'webhooksZ:' .. receiver, item)
    if score and (first == '' or tonumber(score) < tonumber(first)) then
      first = score
    end
  end
  return first
end

local function times_of(id, head, wanted)
  local times = {}
  for i, set in ipairs(SETS) do
    times[i] = redis.call('ZSCORE', cell .. set, id) or ''
  end
  local left = redis.call('PTTL', state_key(id))
  if left > 0 and cache_ms > 0 then
    redis.call('PEXPIRE', state_key(id), cache_ms)
    left = cache_ms
  end
  times[6] = flagged(head, 'r') and reply_time(id, wanted) or ''
  times[7] = left >= 0 and string.format('%.0f', left) or ''
  return times
end

local function look_at(id)
  -- What is there and no hash counts as none.
  local fields = redis.pcall('HGETALL', state_key(id))
  local found = {}
  for i = 1, #fields, 2 do
    found[fields[i]] = fields[i + 1]
  end
  local head = found.head and found.state and head_read(found.head)
  if not head or ARGV[1] ~= '' and head_rest(head).owner ~= ARGV[1] then
    return {}, not head and ARGV[4] == 'load' and absent(id)
  end
  local failed = redis.call('HGET', cell .. 'archiveFailedH', id) or ''
  local one = { times_of(id, head, found.reply), place_of(id, head_rest(head)), failed }
  for i = 1, #fields do
    one[i + 3] = fields[i]
  end
  return one
end

for i = 5, #ARGV do
  local one, gone = look_at(ARGV[i])
  reply[i - 4] = one
  if gone then
    missing[#missing + 1], places[#places + 1] = ARGV[i], i - 4
  end
end
for i, nonce in ipairs(#missing > 0 and miss(now(), missing) or {}) do
  reply[places[i]] = { nonce }
end
return reply
