-- KEYS live nodes left log; ARGV seen ('' for none)
-- Answers {version, milliseconds until a record expires (-1: none)} if the version is `seen`; else also
-- {.., .., base ('' if complete), {id, "<seq> <arrival> <record>", ...}, gone ids, withdrawn ids}.
local live, nodes, left, log = unpack(KEYS)
local seen = ARGV[1]

local function split(entry)
  return string.match(entry, '^(%d+) (.*)$')
end

local expired = redis.call('ZRANGEBYSCORE', live, '-inf', text(now))
if #expired > 0 then
  local ids = {}
  for _, entry in ipairs(expired) do
    local seq, id = split(entry)
    local stored = redis.call('HGET', nodes, 'node:' .. id)
    if stored and split(stored) == seq then redis.call('HDEL', nodes, 'node:' .. id) end
    redis.call('ZREM', live, entry)
    ids[#ids + 1] = id
  end
  local ends = math.max(redis.call('PTTL', live), redis.call('PTTL', nodes))
  changed(live, nodes, log, '-', ids)
  -- The last record's going deletes `live`, and an evicted `nodes` is made anew: neither may stay for ever.
  if redis.call('PTTL', nodes) == -1 then expire(nodes, math.max(ends, 60000)) end
  if redis.call('PTTL', log) == -1 then expire(log, math.max(ends, 60000)) end
end

local function record_of(seq, id)
  local stored = redis.call('HGET', nodes, 'node:' .. id)
  if stored and split(stored) == seq then return stored end
  return nil
end

local version = redis.call('HGET', nodes, 'version') or '0'
local first = redis.call('ZRANGE', live, 0, 0, 'WITHSCORES')
local wait = first[2] and text(math.max(tonumber(first[2]) - now, 0)) or '-1'
if seen == version then return {version, wait} end

local records, gone, withdrawn, base = {}, {}, {}, ''
if seen ~= '' and redis.call('ZCOUNT', log, seen, seen) > 0 then
  base = seen
  local told = {}
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', log, '(' .. seen, '+inf')) do
    local _, what, id = string.match(entry, '^(%d+) ([-+=.])(.*)$')
    if not told[id] then
      told[id] = true
      local stored = redis.call('HGET', nodes, 'node:' .. id)
      if stored and redis.call('ZSCORE', live, split(stored) .. ' ' .. id) then
        records[#records + 1] = id
        records[#records + 1] = stored
      elseif what == '=' or what == '-' then
        gone[#gone + 1] = id -- what came after `seen` and went again was not in it
      end
    end
  end
else
  for _, entry in ipairs(redis.call('ZRANGE', live, 0, -1)) do
    local seq, id = split(entry)
    local stored = record_of(seq, id)
    if stored then
      records[#records + 1] = id
      records[#records + 1] = stored
    end
  end
end

local tombs = redis.call('HGETALL', left)
for i = 1, #tombs, 2 do
  if tombstone(left, tombs[i]) then
    withdrawn[#withdrawn + 1] = tombs[i]
  else
    redis.call('HDEL', left, tombs[i])
  end
end
return {version, wait, base, records, gone, withdrawn}
