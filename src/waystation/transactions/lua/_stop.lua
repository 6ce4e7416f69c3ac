-- Ends transactions before they are done: all that cancel, expire and sweep share. Include before it
-- "complete" and what that needs.
--   stop(id, head, letter, at, cause,   ends what nobody works at, and returns its status; what runs
--        grace_ms, nearer)              or has children is asked to end, within the grace time:
--                                       'asked'. With `nearer` a deadline before that one stays
--   force(id, head, at)                 ends what was asked to, whoever holds it
local function stop(id, head, letter, at, cause, grace_ms, nearer)
  local status, kind = STOPPED[letter][1], STOPPED[letter][2]
  if head.state ~= 'running' and head.state ~= 'waiting_children' then
    head.epoch = head.epoch + 1
    complete(id, head, status, at, cause)
    record(kind, id, head, nil, cause)
    return status
  end
  if not flagged(head, 'ct') then
    local til = at + tonumber(grace_ms)
    -- CH changes the reply alone.
    redis.call('ZADD', cell .. 'deadlineZ', nearer and 'LT' or 'CH', til, id)
    due_hint('deadlineZ', til)
    flag(head, letter)
    flag(head, 'd')
    flag(head, 'x')
    redis.call('HSET', state_key(id), 'head', head_line(head), 'cause', cause)
    record(kind, id, head, nil, cause)
    if head.state == 'waiting_children' then
      redis.call('ZADD', cell .. 'sweepZ', at, id)
      due_hint('sweepZ', at)
    end
  end
  return 'asked'
end
local function force(id, head, at)
  local stopped = STOPPED[string.match(head.flags, '[ct]')]
  head.epoch = head.epoch + 1
  complete(id, head, stopped[1], at)
  record(stopped[2], id, head)
end
