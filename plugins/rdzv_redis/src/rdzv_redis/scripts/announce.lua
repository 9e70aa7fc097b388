-- KEYS live nodes left log register; ARGV id seq record ttl lead
local live, nodes, left, log, register = unpack(KEYS)
local id, seq, record, ttl, lead = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'

local buried = tombstone(left, id)
if buried and not above(seq, buried) then
  return answer(0, 0, select(2, lease(nodes, register, '', ttl, false)), register)
end

local stored = redis.call('HGET', nodes, 'node:' .. id)
local old_seq, arrival, old_record, alive
local listed = false -- readers of the roster may know of it, expired or not
if stored then
  old_seq, arrival, old_record = string.match(stored, '^(%d+) (%d+) (.*)$')
  alive = alive_until(live, nodes, old_seq, id)
  if alive and above(old_seq, seq) then
    return answer(0, 0, select(2, lease(nodes, register, '', ttl, false)), register)
  end
  listed = redis.call('ZREM', live, old_seq .. ' ' .. id) == 1
end
if redis.call('EXISTS', live) == 0 then redis.call('DEL', log) end -- it tells of a roster that was lost
if not alive then arrival = redis.call('HINCRBY', nodes, 'arrival', 1) end

redis.call('HDEL', left, id)
redis.call('HSET', nodes, 'node:' .. id, seq .. ' ' .. arrival .. ' ' .. record)
redis.call('ZADD', live, text(from + ttl), seq .. ' ' .. id)
if not alive or old_record ~= record then changed(live, nodes, log, listed and '=' or '+', {id}) end
renew_run(live, nodes, ttl)
expire_no_earlier(log, 4 * ttl)

local leads, remaining = lease(nodes, register, id, ttl, lead)
return answer(1, leads, remaining, register)
