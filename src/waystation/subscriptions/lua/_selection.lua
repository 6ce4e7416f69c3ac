-- What a step of an operation is about, and how far the operation is here. Include "shard", "entry",
-- "queue", "heads" and "failed_page" before it.
-- ARGV  2 operation, 3 group or '', 4 number or '-', 5 failed from this time on, 6 and before this or
--       0, 7 cursor, 8 messages after which it stops, 9 '1': a dry run
--   operation, group, upto, dry, most
--   selected(cursor)      items of `failed`: the head of the group, the one that stands alone under the
--                         number, or a page of HEADS_MAX
--   sampled(item, entry)  adds to `sample`, up to ten: name, ms, entry or '', record
--   step_known()          the cursor where this step was done before, '' at the end; else nil
--   step_write(cursor)    it is done now. Not in a dry run
local HEADS_MAX = 100
local operation, group, upto = ARGV[2], ARGV[3], tonumber(ARGV[4])
local after, before, cursor = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local most, dry = tonumber(ARGV[8]), ARGV[9] == '1'
local function selected(behind)
  local name = upto and text_of(upto)
  if group ~= '' then
    local entry = entry_read(group)
    name = entry and entry.dead.n > 0 and failed_name(entry.dead.h, group)
  elseif not upto then
    local items, groups = failed_page(after, before, behind, HEADS_MAX), {}
    for _, item in ipairs(items) do
      groups[#groups + 1] = item.group
    end
    entries_read(groups)
    return items
  end
  local ms = tonumber(name and redis.call('ZSCORE', shard .. 'failed', name) or nil)
  local fits = ms and ms >= after and (before == 0 or ms < before)
  return fits and { failed_item(name, ms) } or {}
end
local sample = {}
local function sampled(item, entry)
  local record = #sample < 40 and item.name and record_of('dead', item.number)
  if record then
    local line = entry and entry_line(entry) or ''
    for _, word in ipairs({ item.name, text_of(item.ms), line, record }) do
      sample[#sample + 1] = word
    end
  end
end
local function step_known()
  local known = not dry and redis.call('HGET', shard .. 'ops', operation .. ':cursor')
  if known and known ~= cursor then
    return known == 'end' and '' or known
  end
end
local function step_write(behind)
  redis.call('HSET', shard .. 'ops', operation .. ':cursor', behind == '' and 'end' or behind)
end
