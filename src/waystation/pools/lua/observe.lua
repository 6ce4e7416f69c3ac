#!lua flags=allow-oom
-- repeatable
-- Takes over what was seen of agents: who did something, and what is left in the lists of their keys.
-- A message stays in its key's list until it was seen to be gone from the agent's. What others than we put
-- there is written as number 0 at the front: so it is pending, and moves with its key, by the same rules.
-- KEYS  1 head
-- ARGV  1 terms, 2 ms after which an agent that never did anything counts as having begun, 3 how many
--       agents, then per agent: uid, its last access as it wrote it, or '', then per key: recipient key,
--       last number that an agent has popped, last number that its list has got, length of its list
-- Reply {missing}, or {ok, pending of each key}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
--- @include "_heads"
--- @include "_places"
--- @include "_agent_lists"
local refused = refusal()
if refused then
  return { refused }
end
local function agent_seen(uid, written)
  local worker = worker_read(uid)
  if not worker then
    return
  elseif written == '' then
    -- One that died before its first message would keep its keys for ever.
    local began = tonumber(worker.registered) + tonumber(ARGV[2])
    if worker.state == 'live' and not seen_of(uid) and at >= began then
      access(uid)
    end
  elseif redis.call('HGET', pool .. 'accesses', uid) ~= written then
    redis.call('HSET', pool .. 'accesses', uid, written)
    if worker.state == 'evicted' then
      -- It was taken for dead, and got a message since.
      worker.state, head.version, head.changed = 'live', head.version + 1, true
      worker_write(uid)
    end
    access(uid)
  end
end
local agents, reply = tonumber(ARGV[3]), { 'ok' }
if agents > 0 then
  redis.call('HSET', KEYS[1], 'observed_ms', text_of(at))
end
for i = 4, 3 + 2 * agents, 2 do
  agent_seen(ARGV[i], ARGV[i + 1])
end
for i = 4 + 2 * agents, #ARGV, 4 do
  local entry = entry_read(ARGV[i])
  local gone, pushed, length = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  reply[#reply + 1] = entry and list_seen(ARGV[i], entry, gone, pushed, length) or 0
end
finish()
return reply
