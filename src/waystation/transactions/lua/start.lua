#!lua
-- repeatable
-- Starts transactions. One that is refused leaves nothing behind; a full record log refuses all.
-- KEYS  1 record log
-- ARGV  1 terms, then for each the words of "admit"
-- Reply {'started', log end, then for each: outcome, detail}, or {'full' | 'missing' | 'sealed', most
--       bytes}. Outcomes: started; known (the id is there, and its state); duplicate (whose external
--       id it is); unknown-pipeline; not-a-type; stale (the version that is active). From inside,
--       neither type nor version is asked for
--- @include "store/_now"
--- @include "logs/_trim"
--- @include "logs/_append"
--- @include "_cell"
--- @include "_due"
--- @include "_queue_push"
--- @include "_record"
--- @include "_counts"
--- @include "_sets"
--- @include "_admit"
local at, reply = now(), { 'started', '' }
local ids, externals = {}, {}

local function there(item)
  local id = item.id
  if ids[id] then
    return 'known', ids[id]
  elseif redis.call('EXISTS', item.state_key) == 1 then
    return 'known', string.match(redis.call('HGET', item.state_key, 'head'), '^%d+ (%S+)')
  end
  local taken = item.key and (externals[item.key] or redis.call('GET', item.key))
  if taken == id then
    return 'known', ''
  elseif taken then
    return 'duplicate', taken
  end
end

local function unfit(kind)
  if kind.found == nil then
    local name = pipeline_key(kind.owner, kind.pipeline)
    kind.found = redis.call('HMGET', cell .. 'pipelineH:' .. name, 'active', 'type')
  end
  local active, type_ = kind.found[1], kind.found[2]
  if not active then
    return 'unknown-pipeline', ''
  elseif not kind.inside and type_ ~= '1' then
    return 'not-a-type', ''
  elseif not kind.inside and active ~= kind.version then
    return 'stale', active
  end
end

for from = 2, #ARGV, ADMIT_WORDS do
  local item = admit_read(from)
  local outcome, detail = there(item)
  if not outcome then
    outcome, detail = unfit(item.kind)
  end
  if not outcome then
    outcome, detail = 'started', ''
    admit(item, at)
    ids[item.id] = item.state
    if item.external then
      externals[item.key] = item.id
    end
  end
  reply[#reply + 1] = outcome
  reply[#reply + 1] = detail
end
local log_end, reason, most = record_write(at)
if not log_end then
  return { reason, most }
end
admit_write(at)
reply[2] = log_end
return reply
