#!lua flags=allow-oom
-- repeatable
-- Marks a token as revoked; a mark is only ever prolonged.
-- A second call that knows of an earlier expiry must not bring the token back. Allowed on a full
-- store: it is small, and cannot wait.
-- KEYS  1 mark of the token
-- ARGV  1 its expiry, as it was told
--       2 when the mark dies, in seconds of the store's own clock
-- Reply 1 when the mark is new or prolonged, 0 when it stays as it was
local dies = redis.call('EXPIRETIME', KEYS[1])
if dies == -1 or dies >= tonumber(ARGV[2]) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'EXAT', ARGV[2])
return 1
