#!lua
-- Appends a batch to a log, all or nothing.
-- KEYS  1 log, 2 its head, 3 its holds
-- ARGV  payloads
-- Reply {'appended', first offset, ms}, or {'missing' | 'sealed' | 'full', what follows | most bytes}
--- @include "store/_now"
--- @include "_trim"
--- @include "_append"
local offset, ms, detail = log_append(KEYS[1], now(), ARGV)
if not offset then
  return { ms, detail }
end
return { 'appended', string.format('%.0f', offset), string.format('%.0f', ms) }
