-- KEYS store; ARGV ttl key value [key value ...]. Whoever waits for a key listens to "<store>:<key>".
local store, ttl = KEYS[1], tonumber(ARGV[1])
for i = 2, #ARGV, 2 do
  redis.call('HSET', store, ARGV[i], ARGV[i + 1])
  redis.call('PUBLISH', store .. ':' .. ARGV[i], ARGV[i])
end
expire_no_earlier(store, ttl)
return 1
