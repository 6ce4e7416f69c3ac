-- Leases that are over. Include "moves" before it.
--   over_free(uid, most)   frees what a worker had taken for too long, as crashed; how many
local function over_free(uid, most)
  local keys = redis.call('ZRANGE', pool .. 'taken:' .. uid, '-inf', text_of(at), 'BYSCORE', 'LIMIT', 0, most)
  for _, key in ipairs(keys) do
    local entry = entry_read(key)
    head_free(key, entry, true)
    key_leave(key, entry)
  end
  return #keys
end
