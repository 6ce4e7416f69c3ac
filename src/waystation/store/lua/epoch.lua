-- owned(lease, epoch): whether the caller's epoch is still the newest. A commit that finds it is not
-- must write nothing. The deadline does not matter here: only a take-over ends ownership, and it
-- always raises the epoch.
local function owned(lease, epoch)
  return redis.call('HGET', lease, 'epoch') == epoch
end
