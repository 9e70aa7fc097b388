-- KEYS live nodes left log register pages groups store queues; answers the ids of the nodes that are still alive
local live, nodes = KEYS[1], KEYS[2]
local alive = {}
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', live, '(' .. text(now), '+inf')) do
  local seq, id = string.match(entry, '^(%d+) (.*)$')
  if alive_until(live, nodes, seq, id) then alive[#alive + 1] = id end
end
if #alive == 0 then
  for _, key in ipairs(KEYS) do redis.call('DEL', key) end
  redis.call('PUBLISH', live, '')
  redis.call('PUBLISH', KEYS[5], '')
end
return alive
