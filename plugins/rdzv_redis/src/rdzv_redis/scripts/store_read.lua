-- KEYS store; ARGV ttl key [key ...]. Answers the values, nil where there is none.
local store, ttl = KEYS[1], tonumber(ARGV[1])
local values = {}
for i = 2, #ARGV do
  values[i - 1] = redis.call('HGET', store, ARGV[i])
end
if redis.call('EXISTS', store) == 1 then expire_no_earlier(store, ttl) end
return values
