-- KEYS live nodes register [pages groups]; ARGV id seq ttl lead [keep group]
local live, nodes, register, pages, groups = unpack(KEYS)
local id, seq, ttl, lead = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'

local ends = alive_until(live, nodes, seq, id)
if not ends then
  -- The lease of a node whose record is gone must not hold up the others; that of a node which has meanwhile
  -- announced again, and whose late pulse this is, stays.
  local stored = redis.call('HGET', nodes, 'node:' .. id)
  local successor = stored and alive_until(live, nodes, string.match(stored, '^%d+'), id)
  local owner = successor and '' or id
  return answer(0, 0, select(2, lease(nodes, register, owner, ttl, false)), register)
end

redis.call('ZADD', live, text(from + ttl), seq .. ' ' .. id)
renew_run(live, nodes, ttl)
-- Whoever waits for the next record to expire has been told a later moment.
if from + ttl < ends then redis.call('PUBLISH', live, '') end

local leads, remaining = lease(nodes, register, id, ttl, lead)
if leads == 1 and pages then
  local keep, group = tonumber(ARGV[5]), ARGV[6]
  if redis.call('EXISTS', register) == 1 then
    if not redis.call('HGET', register, 'keep') then expire(register, keep) end
    redis.call('HSET', register, 'keep', text(keep))
    expire_no_earlier(register, keep)
  end
  if redis.call('ZSCORE', groups, group) then
    redis.call('ZADD', groups, text(from + keep), group)
    expire_no_earlier(pages, keep)
    expire_no_earlier(groups, keep)
  end
end
return answer(1, leads, remaining, register)
