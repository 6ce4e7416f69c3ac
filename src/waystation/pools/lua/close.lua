#!lua flags=allow-oom
-- repeatable
-- Begins the end of a pool: nothing is taken in or given out from now on.
-- One that was never opened cannot be opened any more, however late somebody comes to do it.
-- KEYS  1 head
-- ARGV  1 incarnation, 2 recording policy and record log, as in the terms; or ''
-- Reply 1 there is something to unlink, 0 there is not, or a later incarnation has begun
if tonumber(redis.call('HGET', KEYS[1], 'incarnation') or '0') > tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'incarnation', ARGV[1])
if redis.call('HEXISTS', KEYS[1], 'opened_ms') == 0 then
  return 0
end
if redis.call('HSET', KEYS[1], 'closed', 1) == 0 then
  return 1
end
local record, log = string.match(ARGV[2], '^([fhn%-]) (%S+)$')
if record == 'n' then
  redis.call('HSET', KEYS[1], 'withheld', redis.call('HGET', KEYS[1], 'number') or '0')
elseif log and redis.call('EXISTS', log .. ':head') == 1 then
--- @include "store/_now"
--- @include "logs/_records"
  local project, name = string.match(KEYS[1], '^{p%.([^.}]+)%.([^.}]+)')
  record_write(log, record .. record_text(project) .. record_text(name), now(), 1, function()
    return record_event('closed ' .. (redis.call('HGET', KEYS[1], 'number') or '0'))
  end)
end
return 1
