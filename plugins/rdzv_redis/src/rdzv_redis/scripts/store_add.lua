-- KEYS store; ARGV ttl key amount
local store, ttl, key = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local held = redis.call('HGET', store, key)
if held and held ~= '0' and not string.match(held, '^-?[1-9]%d*$') then
  -- As torch's stores read it: blanks, a sign, digits, and whatever follows.
  local sign, digits = string.match(held, '^%s*([+-]?)0*(%d+)')
  if digits then redis.call('HSET', store, key, (sign == '-' and digits ~= '0') and '-' .. digits or digits) end
end
redis.call('HINCRBY', store, key, ARGV[3])
expire_no_earlier(store, ttl)
redis.call('PUBLISH', store .. ':' .. key, key)
return redis.call('HGET', store, key)
