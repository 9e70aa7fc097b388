-- KEYS store queues; ARGV ttl key [key ...]. Answers those keys that are neither set nor a queue that holds something.
local store, queues, ttl = KEYS[1], KEYS[2], tonumber(ARGV[1])
local missing = {}
for i = 2, #ARGV do
  if redis.call('HEXISTS', store, ARGV[i]) == 0 and redis.call('HEXISTS', queues, 'last ' .. ARGV[i]) == 0 then
    missing[#missing + 1] = ARGV[i]
  end
end
if redis.call('EXISTS', store) == 1 then expire_no_earlier(store, ttl) end
return missing
