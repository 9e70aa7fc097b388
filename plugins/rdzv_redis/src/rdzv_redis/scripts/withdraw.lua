-- KEYS live nodes left log register pages groups; ARGV id seq ttl keep ('' if it is not told)
local live, nodes, left, log, register, pages, groups = unpack(KEYS)
local id, seq, ttl, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local buried = tombstone(left, id)
if buried and above(buried, seq) then return 0 end
local stored = redis.call('HGET', nodes, 'node:' .. id)
local what = '.'
if stored then
  local old_seq = string.match(stored, '^%d+')
  if alive_until(live, nodes, old_seq, id) and above(old_seq, seq) then return 0 end
  redis.call('HDEL', nodes, 'node:' .. id)
  -- Expired or not: until a roster was read without it, it was there.
  if redis.call('ZREM', live, old_seq .. ' ' .. id) == 1 then what = '-' end
end

if buried ~= seq then
  redis.call('HSET', left, id, seq .. ' ' .. text(from + ttl))
  expire_no_earlier(left, ttl)
  changed(live, nodes, log, what, {id})
  renew_run(live, nodes, ttl)
  expire_no_earlier(log, 4 * ttl)
end
lease(nodes, register, id, ttl, false)

if keep then
  if redis.call('EXISTS', register) == 1 then redis.call('HSET', register, 'keep', text(keep)) end
  for _, key in ipairs({register, pages, groups}) do expire(key, keep) end
end
return 1
