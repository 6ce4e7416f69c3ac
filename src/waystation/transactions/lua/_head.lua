-- The line of words that scripts keep of a transaction. Hot scripts need the first eight; the others
-- are carried along as one piece until somebody asks for them.
--   head_read(line)         a table: since, state, version, epoch, commits, flags, group, queue, and
--                           rest; version, epoch and commits are numbers. Nil for what is no head
--   head_of(id)             the same, of a transaction; nil without one. Include "cell" before it. What
--                           is there and no hash counts as none: a script has no rollback, and an
--                           error here would leave half of what it did for others
--   ASLEEP[state]           whether there is something to wake
--   head_rest(head)         adds pipeline, owner, status, wake, switch, rescues, node, archive
--   head_line(head, at)     the line, one version later; `at` is given where the state has changed
--   head_claimed(line, since, node)
--                           the line of what is queued once it runs, its queue, pipeline, owner and
--                           flags; nil if it is not queued. In one go, as it is the hottest of all
--   head_woken(line, at)
--                           the line of what sleeps, and was to wake by `at`, once it is queued; its
--                           node group, pipeline, owner, version, epoch, and a text that has its flags;
--                           nil for all else. In one go, as thousands may wake at once
--   flagged(head, letters)  whether it has one of the flags
--   flag(head, letter), unflag(head, letters)
local HEAD_HOT = '^([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) (.*)$'
local HEAD_REST = '^([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+)$'
local HEAD_QUEUED = '^[^ ]+ queued ([^ ]+) ([^ ]+) [^ ]+ ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) '
  .. '([^ ]+ [^ ]+ [^ ]+ [^ ]+) [^ ]+ ([^ ]+)$'
local HEAD_ASLEEP = '^[^ ]+ ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+ [^ ]+) ([^ ]+) [^ ]+ ([^ ]+) ([^ ]+) '
  .. '([^ ]+) ([^ ]+) [^ ]+ ([^ ]+ [^ ]+) [^ ]+$'
local ASLEEP = { sleeping = true, waiting_switch = true, scheduled = true }
local function head_woken(line, at)
  local state, version, epoch, flags, group, pipeline, owner, status, wake, rest =
    string.match(line, HEAD_ASLEEP)
  if state and ASLEEP[state] and (tonumber(wake) or math.huge) <= at then
    version = version + 1
    return text_of(at) .. ' queued ' .. text_of(version) .. ' ' .. epoch .. ' ' .. flags .. ' ' .. group .. ' in '
      .. pipeline .. ' ' .. owner .. ' ' .. status .. ' 0 - ' .. rest .. ' -', group, pipeline, owner,
      version, epoch, flags
  end
end
local function head_claimed(line, since, node)
  local version, epoch, flags, group, queue, pipeline, owner, middle, archive =
    string.match(line, HEAD_QUEUED)
  if version then
    return since .. ' running ' .. text_of(version + 1) .. ' ' .. text_of(epoch + 1) .. ' 0 ' .. flags
      .. ' ' .. group .. ' ' .. queue .. ' ' .. pipeline .. ' ' .. owner .. ' ' .. middle .. ' ' .. node .. ' '
      .. archive, queue, pipeline, owner, flags
  end
end
local function head_read(line)
  local since, state, version, epoch, commits, flags, group, queue, rest =
    string.match(line, HEAD_HOT)
  return since and {
    since = since, state = state, version = tonumber(version), epoch = tonumber(epoch),
    commits = tonumber(commits), flags = flags, group = group, queue = queue, rest = rest
  }
end
local function head_of(id)
  local line = redis.pcall('HGET', state_key(id), 'head')
  return type(line) == 'string' and head_read(line) or nil
end
local function head_rest(head)
  if not head.pipeline then
    head.pipeline, head.owner, head.status, head.wake, head.switch, head.rescues, head.node,
      head.archive = string.match(head.rest, HEAD_REST)
    head.rescues = tonumber(head.rescues)
  end
  return head
end
local function head_line(head, at)
  head.version = head.version + 1
  if at then
    head.since = text_of(at)
  end
  local rest = head.rest
  if head.pipeline then
    rest = head.pipeline .. ' ' .. head.owner .. ' ' .. head.status .. ' ' .. head.wake .. ' '
      .. head.switch .. ' ' .. text_of(head.rescues) .. ' ' .. head.node .. ' ' .. head.archive
  end
  return head.since .. ' ' .. head.state .. ' ' .. text_of(head.version) .. ' '
    .. text_of(head.epoch) .. ' ' .. text_of(head.commits) .. ' ' .. head.flags .. ' ' .. head.group .. ' ' .. head.queue .. ' ' .. rest
end
local function flagged(head, letters)
  return head.flags ~= '-' and string.find(head.flags, '[' .. letters .. ']') ~= nil
end
local function unflag(head, letters)
  if head.flags ~= '-' then
    local left = string.gsub(head.flags, '[' .. letters .. ']', '')
    head.flags = left == '' and '-' or left
  end
end
local function flag(head, letter)
  if not flagged(head, letter) then
    head.flags = (head.flags == '-' and '' or head.flags) .. letter
  end
end
