#!lua flags=allow-oom
-- repeatable
-- Mark a token as revoked until it expires.
-- A mark is never shortened, so that a call with an earlier expiry does not make a revoked token
-- valid again. A second run changes nothing and replies 0.
-- Runs in a full store too, because a revocation is small and urgent.
--
-- KEYS    1 mark of the token
-- ARGV    1 expiry of the token in seconds since 1970
--         2 expiry of the mark in seconds of the store's own clock
-- Reply   1    the mark is new or was prolonged
--         0    an existing mark lasts as long or longer
-- Errors  none of its own
local dies = redis.call('EXPIRETIME', KEYS[1])
if dies == -1 or dies >= tonumber(ARGV[2]) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'EXAT', ARGV[2])
return 1
