-- KEYS pages groups; ARGV group keep page...
-- `pages` is one hash for all groups: "<index> <group>" -> page, "# <group>" -> how many. `groups` says until when.
local pages, groups = unpack(KEYS)
local group, keep = ARGV[1], tonumber(ARGV[2])

for _, old in ipairs(redis.call('ZRANGEBYSCORE', groups, '-inf', text(now))) do
  for index = 0, tonumber(redis.call('HGET', pages, '# ' .. old) or '0') - 1 do
    redis.call('HDEL', pages, index .. ' ' .. old)
  end
  redis.call('HDEL', pages, '# ' .. old)
  redis.call('ZREM', groups, old)
end

for i = 3, #ARGV do
  redis.call('HSETNX', pages, (i - 3) .. ' ' .. group, ARGV[i])
end
redis.call('HSETNX', pages, '# ' .. group, #ARGV - 2)
local ends = math.max(from + keep, tonumber(redis.call('ZSCORE', groups, group) or '0'))
redis.call('ZADD', groups, text(ends), group)
expire_no_earlier(pages, keep)
expire_no_earlier(groups, keep)
return 1
