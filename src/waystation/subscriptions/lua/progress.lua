#!lua flags=allow-oom
-- repeatable
-- Notes of who drives an operation, the shard's owner.
-- KEYS  1 record log
-- ARGV  1 terms, 2 operation, 3 cursor that it is at ('*': wherever), then word, value, ...
-- Reply {refused | frozen | missing}, or {1} noted, {0} unknown here, or not at that cursor any more
--- @include "_shard"
local refused = refusal()
if refused then
  return { refused }
end
local key, operation = shard .. 'ops', ARGV[2]
local found = redis.call('HMGET', key, operation, operation .. ':cursor')
if not found[1] or (ARGV[3] ~= '*' and (found[2] or '') ~= ARGV[3]) then
  return { 0 }
end
local words = {}
for i = 4, #ARGV, 2 do
  words[#words + 1] = operation .. ':' .. ARGV[i]
  words[#words + 1] = ARGV[i + 1]
end
redis.call('HSET', key, unpack(words))
return { 1 }
