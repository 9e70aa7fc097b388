-- What every script of this folder begins with. The rules of the store:
--
-- * Time is this server's own (TIME), in whole milliseconds; no client's clock is ever read.
-- * `live` is a sorted set of "<seq> <id>", scored by the moment at which that record expires.
-- * `nodes` is a hash: "node:<id>" holds "<seq> <arrival> <record>"; `version`, `arrival`, `leader` and `lease`
--   are of the run.
-- * `left` is a hash of tombstones: id -> "<seq> <expires>".
-- * `log` is a sorted set of "<version> <what><id>", scored by version: who came (+), changed (=), went (-), or
--   withdrew without having been there (.). It may be lost: then a reader gets the whole roster, not a change.
-- * `register` is a hash: `state`, `token` ("<count>.<write id>"), `keep` (milliseconds, once told).
--
-- A version is the server's microsecond of the change, and at least one more than the version before. So a
-- store that was wiped, or fell back to an earlier snapshot, does not use a version twice.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- What is given a time to live from now on has all of it, though `now` is rounded down.
local from = now + 1

-- Numbers above 10^14 would be written as 1.0e+15.
local function text(number)
  return string.format('%.0f', number)
end

-- Sequence numbers are compared as decimal text: they may be larger than what a double holds exactly.
local function above(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end

-- The server counts from a moment that is rounded down, too.
local function expire(key, ms)
  redis.call('PEXPIRE', key, text(ms + 1))
end

local function expire_no_earlier(key, ms)
  if redis.call('PTTL', key) < ms then expire(key, ms) end
end

-- The moment at which a record expires, or nil if there is none or it has.
local function alive_until(live, nodes, seq, id)
  local ends = redis.call('ZSCORE', live, seq .. ' ' .. id)
  if not ends or tonumber(ends) <= now then return nil end
  local stored = redis.call('HGET', nodes, 'node:' .. id)
  if not stored or string.match(stored, '^%d+') ~= seq then return nil end
  return tonumber(ends)
end

local function tombstone(left, id)
  local stored = redis.call('HGET', left, id)
  if not stored then return nil end
  local seq, ends = string.match(stored, '^(%d+) (%d+)$')
  if tonumber(ends) <= now then return nil end
  return seq
end

-- Membership or a record has changed: a new version, and a word to the leader.
local function changed(live, nodes, log, what, ids)
  local before = tonumber(redis.call('HGET', nodes, 'version') or '0')
  if before == 0 then redis.call('DEL', log) end -- it tells of a roster that was lost
  local version = math.max(before + 1, clock[1] * 1000000 + clock[2])
  local name = text(version)
  redis.call('HSET', nodes, 'version', name)
  for _, id in ipairs(ids) do
    redis.call('ZADD', log, name, name .. ' ' .. what .. id)
  end
  -- A longer log would save nothing: then the whole roster is the shorter answer.
  redis.call('ZREMRANGEBYRANK', log, 0, -(redis.call('ZCARD', live) + 65))
  redis.call('PUBLISH', live, name)
end

local function renew_run(live, nodes, ttl)
  expire_no_earlier(live, 4 * ttl)
  expire_no_earlier(nodes, 4 * ttl)
end

-- Takes, keeps or gives up the leader lease; answers whether `id` leads, and the milliseconds left of the lease.
local function lease(nodes, register, id, ttl, lead)
  local held = redis.call('HMGET', nodes, 'leader', 'lease')
  local ends = tonumber(held[2] or '0')
  local vacant = ends <= now
  local mine = held[1] == id and not vacant
  if lead and (mine or vacant) then
    redis.call('HSET', nodes, 'leader', id, 'lease', text(from + ttl))
    return 1, ttl
  elseif mine then
    redis.call('HDEL', nodes, 'leader', 'lease')
    redis.call('PUBLISH', register, '')
    return 0, 0
  elseif vacant then
    return 0, 0
  end
  return 0, math.max(ends - from, 1)
end

local function answer(known, leads, left, register)
  return {known, leads, text(left), redis.call('HGET', register, 'token')}
end
