-- KEYS store; ARGV key
return redis.call('HDEL', KEYS[1], ARGV[1])
