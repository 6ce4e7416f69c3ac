#!lua
-- repeatable
-- Enqueues messages for recipient keys, each to the worker that its key has, or gets now.
-- A worker that is found stale is evicted; up to 100 of its keys move at once, the rest by `reassign`.
-- KEYS  1 head
-- ARGV  1 terms, 2 how long ids are remembered in ms, then per message: id, recipient key, envelope
-- Reply {missing | closed}, or {ok, how many workers have keys left to move, these workers, then per
--       message: added | duplicate | full, number, owner, epoch, pending of its key}
--- @include "store/_now"
--- @include "_pool"
--- @include "_worker"
--- @include "_load"
--- @include "_entry"
--- @include "_pick"
--- @include "_heads"
--- @include "_moves"
--- @include "_many"
--- @include "_appending"
local refused = refusal(true)
if refused then
  return { refused }
end
local results = {}
local function told(outcome, number, key, pending)
  local entry = entry_read(key) or { owner = '-', epoch = '0' }
  pending = pending or redis.call('LLEN', pool .. 'm:' .. key)
  for _, word in ipairs({ outcome, number, entry.owner, entry.epoch, pending }) do
    results[#results + 1] = word
  end
end
for i = 3, #ARGV, 3 do
  local id, key, packed = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local known = redis.call('GET', pool .. 'id:' .. id)
  if known and tonumber(known) > head.former then
    told('duplicate', known, key)
  elseif is_full(key, packed) then
    told('full', 0, key)
  else
    local count = append(key, packed)
    event('enqueued ' .. text_of(head.number), { key, id }, packed)
    redis.call('SET', pool .. 'id:' .. id, text_of(head.number), 'PX', ARGV[2])
    told('added', text_of(head.number), key, count)
  end
end
local reply = { 'ok', 0 }
for uid in pairs(leaving) do
  local _, left = worker_move(uid, 100)
  if left > 0 then
    reply[#reply + 1] = uid
  end
end
reply[2] = #reply - 2
for _, word in ipairs(results) do
  reply[#reply + 1] = word
end
finish()
return reply
