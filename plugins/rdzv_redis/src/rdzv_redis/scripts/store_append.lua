-- KEYS store; ARGV ttl key value
local store, ttl, key = KEYS[1], tonumber(ARGV[1]), ARGV[2]
redis.call('HSET', store, key, (redis.call('HGET', store, key) or '') .. ARGV[3])
expire_no_earlier(store, ttl)
redis.call('PUBLISH', store .. ':' .. key, key)
return 1
