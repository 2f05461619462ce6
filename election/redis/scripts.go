package redis

// The scripts answer lists of texts. Each runs alone, at one moment of Redis's clock, and does
// nothing if it ends with an error, because what can fail comes first.

// common is in front of every script. A replica answers nothing, not even reads: what it shows may
// be old. What has another type than Fencepost gives it counts as absent.
const common = `
local generation, leases, lives = KEYS[1], KEYS[2], KEYS[3]
local about = redis.call('info', 'replication')
if not about:find('role:master', 1, true) then
	return redis.error_reply('READONLY this server is a replica')
end
local replid = about:match('master_replid:(%x+)')
if not replid then
	return redis.error_reply('NOREPLID INFO replication shows no master_replid')
end

local function is(key, kind)
	return redis.call('type', key).ok == kind
end

-- marker returns what identifies the instance, '' if there is none.
local function marker()
	local found = redis.call('type', generation).ok
	if found == 'none' then return '' end
	if found ~= 'hash' then return 'a ' .. found end
	local text, count = redis.call('hget', generation, 'marker'), redis.call('hget', generation, 'count') or ''
	if not text or text == '' or not count:match('^%d+$') or #count > 18 then return '' end
	return text .. '.' .. replid:sub(1, 32)
end

-- alive returns the TTL of a life, or false if it is over. What never ends by itself is over.
local function alive(id)
	local key = lives .. id
	if not is(key, 'string') then return false end
	local ttl, left = tonumber(redis.call('get', key) or ''), redis.call('pttl', key)
	if not ttl or left < 0 then return false end
	if left > ttl then redis.call('pexpire', key, ttl) end -- the clock was set back
	return ttl
end

-- field returns the value of a field of a lease, '' if there is nothing.
local function field(name)
	return is(leases, 'hash') and redis.call('hget', leases, name) or ''
end

-- holder returns the life in the text of a field, or nil.
local function holder(text)
	return text:match('^%d+ (%w+) ')
end

local function held(text)
	local id = holder(text)
	return id and alive(id) and '1' or '0'
end

-- evicts returns the answer to whoever asks for more than to keep or to give back what it has,
-- while Redis may delete keys before they expire.
local function evicts()
	local policy = redis.call('info', 'memory'):match('maxmemory_policy:(%S+)') or 'not known'
	if policy ~= 'noeviction' then return redis.error_reply('EVICTS maxmemory-policy is ' .. policy) end
end
`

// readScript answers the marker, the field, and whether its life continues.
const readScript = common + `
local text = field(ARGV[1])
return {marker(), text, held(text)}
`

// swapScript writes a record, provided that its field is as it was. A life makes it an award, which
// needs a marker that is as it was, and is made once.
const swapScript = common + `
local name, old, record, life, under = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now = field(name)
if life ~= '' then
	if holder(now) == life and alive(life) then return {'written', now:match('^%d+')} end
	if now ~= old or marker() ~= under then return {'conflict'} end
	if not alive(life) then return {'lost'} end
	local refused = evicts()
	if refused then return refused end
elseif now ~= old then
	return {'conflict'}
end
for _, key in ipairs({generation, leases}) do
	if not is(key, 'hash') then redis.call('del', key) end
end
local version = string.format('%d', redis.call('hincrby', generation, 'count', 1))
redis.call('hset', leases, name, version .. ' ' .. (life ~= '' and life or '-') .. ' ' .. record)
return {'written', version}
`

// beatScript extends a life that holds the lease.
const beatScript = common + `
local name, life = ARGV[1], ARGV[2]
if holder(field(name)) ~= life then return {'lost', 'its lease has expired, or somebody has deleted or written its record'} end
local ttl = alive(life)
if not ttl then return {'lost', 'its key has expired, or was deleted or overwritten'} end
redis.call('pexpire', lives .. life, ttl)
return {'held'}
`

// beginScript begins a life.
const beginScript = common + `
redis.call('set', lives .. ARGV[1], ARGV[2], 'px', ARGV[2])
return {}
`

// endScript ends a life.
const endScript = common + `
redis.call('del', lives .. ARGV[1])
return {}
`

// markScript writes the marker. The counter continues if there is one.
const markScript = common + `
local found = marker()
if found ~= '' and ARGV[2] ~= 'replace' then return {} end
if found == '' or not is(generation, 'hash') then
	redis.call('del', generation)
	redis.call('hset', generation, 'count', '0')
end
redis.call('hset', generation, 'marker', ARGV[1])
return {}
`

// positionScript answers the marker and the counter.
const positionScript = common + `
local found = marker()
return {found, is(generation, 'hash') and redis.call('hget', generation, 'count') or '0'}
`

// watchScript answers nothing but the given digest if the marker and the counter are as given, which
// costs next to nothing. Otherwise it looks at everything, and answers a digest of it, the marker
// with the counter, and, unless the digest is the given one, the marker, and then the name, the text
// and the state of each lease. An expiry is seen only if it looks at everything.
const watchScript = common + `
local digest, counted = ARGV[1], ARGV[2]
local now = marker() .. ' ' .. (is(generation, 'hash') and redis.call('hget', generation, 'count') or '')
if now == counted then return {digest, now} end
local refused = evicts()
if refused then return refused end
local found = is(leases, 'hash') and redis.call('hgetall', leases) or {}
local all = {'', now, marker()}
for i = 1, #found, 2 do
	all[#all + 1], all[#all + 2], all[#all + 3] = found[i], found[i + 1], held(found[i + 1])
end
all[1] = redis.sha1hex(table.concat(all, '\n', 3))
if all[1] == digest then return {digest, now} end
return all
`

// checkScript tries what the others do, and leaves nothing: what it writes has an expiry
// before anything else can be denied.
const checkScript = common + `
local refused = evicts()
if refused then return refused end
local scratch = lives .. ARGV[1]
redis.call('set', scratch, '1', 'px', 1000)
redis.call('get', scratch)
redis.call('pttl', scratch)
redis.call('pexpire', scratch, 1000)
redis.call('del', scratch)
redis.call('hset', scratch, 'marker', 'x')
redis.call('pexpire', scratch, 1000)
redis.call('hincrby', scratch, 'count', 1)
redis.call('hget', scratch, 'marker')
redis.call('hgetall', scratch)
redis.call('type', scratch)
redis.call('del', scratch)
return {}
`
