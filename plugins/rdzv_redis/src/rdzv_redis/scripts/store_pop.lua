-- KEYS queues; ARGV ttl key. Answers the oldest value, or nil.
local queues, ttl, key = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local ends = redis.call('HMGET', queues, 'first ' .. key, 'last ' .. key)
if not ends[2] then return nil end
local first, last = tonumber(ends[1]), tonumber(ends[2])
local field = first .. ' ' .. key
local value = redis.call('HGET', queues, field)
redis.call('HDEL', queues, field)
if first == last then
  redis.call('HDEL', queues, 'first ' .. key, 'last ' .. key)
else
  redis.call('HSET', queues, 'first ' .. key, first + 1)
  expire_no_earlier(queues, ttl)
end
return value
