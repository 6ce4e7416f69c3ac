-- What waits in an outbox, before anything is put there. A lane is a key prefix in the caller's own slot,
-- so that adding is part of the caller's script. These are statements, and no functions: a script makes
-- its functions anew at every call, and every publish with a webhook comes by here.
-- Before it: first_lane and last_lane, the places of the lanes in ARGV. After it: `waiting`, by place how
-- many items wait in the inbox of each. Where a lane is closed the script ends here, and its reply is
-- {'closed', what the gate of each says}.
local waiting, closed = {}, false
for i = first_lane, last_lane do
  waiting[i] = redis.call('XLEN', ARGV[i] .. '.in')
  -- A lane is closed only when nothing is in it.
  closed = closed or waiting[i] == 0 and redis.call('HGET', ARGV[i] .. '.gate', 'state') ~= 'open'
end
if closed then
  local gates = { 'closed' }
  for i = first_lane, last_lane do
    local state = waiting[i] == 0 and redis.call('HGET', ARGV[i] .. '.gate', 'state')
    gates[#gates + 1] = waiting[i] > 0 and 'open' or state or ''
  end
  return gates
end
