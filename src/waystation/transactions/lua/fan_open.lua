#!lua
-- repeatable
-- Opens the counter of parallel children, with the state that lists them.
-- From here on a rescue goes on creating them instead of calling the step again.
-- KEYS  1 record log
-- ARGV  1 terms, then items as in "moves", each with four own words: round, number of children,
--       'cancel_rest' | 'wait_all', bytes that their results may have together
-- Reply {log end, outcome, version, ...}; outcomes as of commit
--- @include "now"
--- @include "log_trim"
--- @include "log_append"
--- @include "cell"
--- @include "head"
--- @include "outbox_put"
--- @include "reply_put"
--- @include "due"
--- @include "owned_by"
--- @include "queue_push"
--- @include "record"
--- @include "counts"
--- @include "sets"
--- @include "kids"
--- @include "complete"
--- @include "ended"
--- @include "moves"
return moves(now(), 'fanned', 4, function(id, _, own)
  local before = kids_read(redis.call('HGET', state_key(id), 'kids'))
  if before then
    -- A result that is there counts as told: those of another round must not be.
    local old = {}
    for n = 1, before.total do
      old[n] = 'result:' .. n
    end
    redis.call('HDEL', state_key(id), 'kids', unpack(old))
  end
  local kids = {
    round = ARGV[own + 1], total = ARGV[own + 2], created = 0, done = 0, policy = ARGV[own + 3],
    swept = 0, failed = '-'
  }
  return 'done', { 'kids', kids_text(kids), 'room', ARGV[own + 4] }
end)
