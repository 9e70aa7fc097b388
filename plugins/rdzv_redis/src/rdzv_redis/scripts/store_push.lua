-- KEYS store queues; ARGV ttl key value. A queue is numbered fields of one hash: "<number> <key>" -> value, and
-- "first <key>", "last <key>" while it holds something.
local store, queues, ttl, key = KEYS[1], KEYS[2], tonumber(ARGV[1]), ARGV[2]
redis.call('HSETNX', queues, 'first ' .. key, 1)
local last = redis.call('HINCRBY', queues, 'last ' .. key, 1)
redis.call('HSET', queues, last .. ' ' .. key, ARGV[3])
expire_no_earlier(queues, ttl)
redis.call('PUBLISH', store .. ':' .. key, key)
return 1
