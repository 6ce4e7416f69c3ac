-- The cell of a script, from the name of its record log; all other keys are made from its tag.
--   cell                            the tag with its colon
--   state_key(id)                   the hash of a transaction
--   pipeline_key(owner, pipeline)   how a pipeline is called in names of keys; another project's
--                                   is `<project>.<pipeline>`, since a name has no dot
--   drop_fields(id, first, last)    takes fields off a transaction: ARGV[first] to ARGV[last], in
--                                   pieces, since Lua unpacks no more than some thousands
--   text_of(number)                 a whole number as text, made once a call: most items have the same
--                                   few; without this a finish takes up to a tenth longer
local cell = string.sub(KEYS[1], 1, -4)
local texts = {}
local function text_of(number)
  local text = texts[number]
  if not text then
    text = string.format('%.0f', number)
    texts[number] = text
  end
  return text
end
local function state_key(id)
  return cell .. 'stateH:' .. id
end
local function drop_fields(id, first, last)
  for from = first, last, 1000 do
    redis.call('HDEL', state_key(id), unpack(ARGV, from, math.min(from + 999, last)))
  end
end
local function pipeline_key(owner, pipeline)
  return owner == 'default' and pipeline or owner .. '.' .. pipeline
end
