-- KEYS register; ARGV state token ('' if it must be empty) write-id
-- Answers {1, token} if it was written; else {0, token, state}, or {0} if the register is empty.
local register = KEYS[1]
local state, expected, write_id = ARGV[1], ARGV[2], ARGV[3]

local held = redis.call('HMGET', register, 'token', 'keep')
local token = held[1] or ''
-- The same call has come before, and its answer was lost.
if token ~= '' and string.match(token, '%.(.*)$') == write_id then return {1, token} end
if token ~= expected then
  if token == '' then return {0} end
  return {0, token, redis.call('HGET', register, 'state')}
end

local count = tonumber(string.match(token, '^%d+') or '0') + 1
token = text(count) .. '.' .. write_id
redis.call('HSET', register, 'state', state, 'token', token)
expire(register, tonumber(held[2] or '900000'))
redis.call('PUBLISH', register, token .. ' ' .. state)
return {1, token}
