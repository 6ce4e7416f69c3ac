-- What the moves of a holder share: who may move, what a cancel makes of it, and what is written.
-- Include before it: owned_by, and all that "complete" needs, with it. An item begins with: id, epoch,
-- commits after this move, state, detail, number of fields to drop, the fields; then its own words.
--   moves(at, kind, words, move,   goes through the items. move(id, head, own) changes the head and
--         unwanted)                returns the outcome and a list of fields to set, or the outcome
--                                  alone where it refuses; ARGV[own + 1] is the first own word. A
--                                  third value is true where nothing was tried: a suspect stays one.
--                                  unwanted(id, head), if given, returns the cause for which the
--                                  transaction is cancelled instead, or nil.
--                                  Returns the reply: log end, then outcome and version of each
--   leave(id, head, state)         for a move that ends the run: off the sets of what runs
local function leave(id, head, state)
  head_rest(head)
  head.state, head.node = state, '-'
  off('processingZ', id)
  off('leaseZ', id)
end
local function moved(id, head, at, item, fields)
  local from = item.from
  unflag(head, 'b')
  if flagged(head, 's') and not item.untried then
    -- Only a suspect can have been rescued since the last commit.
    head_rest(head).rescues = 0
    unflag(head, 's')
  end
  if #fields > 0 then
    flag(head, 'x')
  end
  local line = head_line(head, head.state ~= 'running' and at or nil)
  redis.call('HSET', state_key(id), 'head', line, 'state', ARGV[from + 3], unpack(fields))
  drop_fields(id, from + 6, from + 5 + item.drops)
  if head.state ~= 'running' and head.state ~= 'queued' then
    -- Clients take what is queued for running.
    reply_put(id, head, 'status', at)
  end
end
local function moves(at, kind, words, move, unwanted)
  local reply, from = { '' }, 2
  while from <= #ARGV do
    local id, drops = ARGV[from], tonumber(ARGV[from + 5])
    local head = head_of(id)
    local outcome, fields = 'unknown', nil
    if head then
      outcome = owned(head, ARGV[from + 1], ARGV[from + 2])
      if outcome == 'known' and head.state == 'complete' then
        -- No move but this one can have ended it: an end by force has another epoch.
        outcome = 'cancelled'
      end
    end
    if not outcome then
      local stopped = STOPPED[string.match(head.flags, '[ct]')]
      local cause = not stopped and unwanted and unwanted(id, head) or nil
      stopped = stopped or (cause and STOPPED.c)
      head.commits = head.commits + 1
      if stopped then
        outcome = 'cancelled'
        complete(id, head, stopped[1], at, cause, nil, ARGV[from + 3])
        record(stopped[2], id, head, ARGV[from + 4], cause)
      else
        local untried
        outcome, fields, untried = move(id, head, from + 5 + drops)
        if fields then
          moved(id, head, at, { from = from, drops = drops, untried = untried }, fields)
          record(kind, id, head, ARGV[from + 4])
        end
      end
    end
    reply[#reply + 1] = outcome
    reply[#reply + 1] = head and head.version or 0
    from = from + 6 + drops + words
  end
  reply[1] = ended_write(at)
  return reply
end
