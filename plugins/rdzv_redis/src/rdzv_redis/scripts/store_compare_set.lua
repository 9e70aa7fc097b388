-- KEYS store; ARGV ttl key expected desired. As torch's TCPStore: a key that is not there takes `desired` only
-- if nothing is expected; else the answer is what was expected.
local store, ttl, key, expected, desired = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local held = redis.call('HGET', store, key)
if not held and expected ~= '' then return expected end
if held and held ~= expected then return held end
redis.call('HSET', store, key, desired)
expire_no_earlier(store, ttl)
redis.call('PUBLISH', store .. ':' .. key, key)
return desired
