-- KEYS store; ARGV ttl key amount
local store, ttl, key = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local sum = redis.call('HINCRBY', store, key, ARGV[3])
expire_no_earlier(store, ttl)
redis.call('PUBLISH', store .. ':' .. key, key)
return redis.call('HGET', store, key)
