package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/faults"
)

// leastVersion is the least major version. Older ones report errors of scripts in another way.
const leastVersion = 7

// rights are what a user needs, in addition to its keys. docs/redis.md has them too.
const rights = "+eval +info +type +get +set +pttl +pexpire +del +hget +hset +hincrby +hgetall"

const noCluster = "Fencepost does not support Redis Cluster: set election.redis.address to a Redis with a single master."

// remedies are what an operator can do about an answer, by how it begins.
var remedies = []struct{ begins, remedy string }{
	{"EVICTS ", "Redis may delete leases before they expire. Set maxmemory-policy noeviction (CONFIG SET and redis.conf), or use another Redis."},
	{"READONLY ", "It must be the master: set election.redis.address to it, or to a name that follows it after a failover."},
	{"OOM ", "Redis is full (maxmemory). Raise maxmemory, or delete what nobody needs. Leaders continue, and leases can be released meanwhile."},
	{"MISCONF ", "Redis cannot save its data and takes no writes (stop-writes-on-bgsave-error). Its log says why; most often its disk is full."},
	{"NOREPLICAS ", "Redis takes no writes, because it has fewer replicas than min-replicas-to-write. Bring them back, or lower that setting."},
	{"MOVED ", noCluster}, {"CROSSSLOT ", noCluster}, {"CLUSTERDOWN ", noCluster},
	{"NOREPLID ", "It must be a Redis 7.0 or newer, or a Valkey: another server that speaks Redis's protocol will not do."},
	{"WRONGTYPE ", "Somebody else uses the keys under election.redis.prefix: set it to another prefix."},
	{"ERR unknown command", "Set election.redis.address to a Redis: a Sentinel, or a server that lacks commands, will not do."},
	{"ERR DB index is out of range", "Set election.redis.database to the number of a database that this Redis has (setting databases of Redis)."},
}

// failed returns the error of a request.
func (s *store) failed(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	var denied *elector.DeniedError
	var answer redis.Error
	var network net.Error
	switch {
	case errors.As(err, &denied):
		return fmt.Errorf("%s: %w", what, err)
	case errors.As(err, &answer):
		if remedy := s.remedy(answer.Error()); remedy != "" {
			return &elector.DeniedError{Kind: faults.LeaseDenied, Answer: answer.Error(), Err: fmt.Errorf("%s: %s answered %w", what, s.name, answer), Remedy: remedy}
		}
		return fmt.Errorf("%s: %s answered %w", what, s.name, answer)
	case errors.Is(err, redis.ErrNil):
		return fmt.Errorf("%s: %s answered nothing", what, s.name)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %s has not answered: %w", what, s.name, ctx.Err())
	case errors.As(err, &network) && network.Timeout():
		return fmt.Errorf("%s: %s has not answered: %w (%w)", what, s.name, context.DeadlineExceeded, err)
	}
	return fmt.Errorf("%s: %w", what, &kv.Unreachable{Service: s.name, Err: err})
}

// remedy returns what an operator can do about an answer, or "" if that is not what it takes.
func (s *store) remedy(answer string) string {
	for _, r := range remedies {
		if strings.HasPrefix(answer, r.begins) {
			return r.remedy
		}
	}
	switch {
	case strings.HasPrefix(answer, "NOAUTH "), strings.HasPrefix(answer, "WRONGPASS "), strings.HasPrefix(answer, "ERR AUTH "):
		return "Set election.redis.user and its password (FENCEPOST_ELECTION_REDIS_PASSWORD or password_file) to those of a user that Redis has (ACL LIST)."
	case strings.HasPrefix(answer, "NOPERM "), strings.Contains(answer, "The user executing the script"):
		user := s.user
		if user == "" {
			user = "default"
		}
		return fmt.Sprintf("Allow it: ACL SETUSER %s ~%s* %s, and +select unless election.redis.database is 0.", user, s.prefix, rights)
	}
	return ""
}

// greet refuses a server that cannot be used, with each new connection.
func (s *store) greet(ctx context.Context, conn redis.Conn) error {
	text, err := redis.String(redis.DoContext(conn, ctx, "INFO", "server"))
	if err != nil {
		return err
	}
	info := parse(text)
	major, err := strconv.Atoi(strings.Split(info["redis_version"], ".")[0])
	answer, remedy := "", ""
	switch mode := info["redis_mode"]; {
	case mode == "cluster":
		answer, remedy = "it is a node of a Redis Cluster", noCluster
	case mode == "sentinel":
		answer = "it is a Redis Sentinel"
		remedy = "Fencepost does not ask a Sentinel for the master: set election.redis.address to the master, or to a name that follows it after a failover."
	case err != nil || major < leastVersion:
		answer = fmt.Sprintf("its version is %q", info["redis_version"])
		remedy = "Fencepost needs Redis 7.0 or newer: update it."
	default:
		return nil
	}
	return &elector.DeniedError{Kind: faults.LeaseDenied, Answer: answer, Err: fmt.Errorf("%s cannot be used: %s", s.name, answer), Remedy: remedy}
}

// parse returns the fields of an answer to INFO.
func parse(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}
