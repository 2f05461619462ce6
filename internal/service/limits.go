package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"syscall"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/table"
)

// fences opens the fences of one database within limits, because clients name the
// resources, and each has a permanent row.
type fences struct {
	db       *fence.Database
	database string
	current  func() *config.Config
	log      *zap.Logger
	turn     chan struct{} // cap 1; held while a resource is created
}

func newFences(db *fence.Database, database string, current func() *config.Config, log *zap.Logger) *fences {
	return &fences{db: db, database: database, current: current, log: log, turn: make(chan struct{}, 1)}
}

// configured returns the resources that are always allowed.
func (f *fences) configured() []string { return slices.Collect(maps.Keys(f.current().Resources)) }

// open implements election.Backend's Fence. A resource that may not be created is
// refused with a *fencing.Refusal.
func (f *fences) open(ctx context.Context, resource string) (election.Fence, error) {
	if _, configured := f.current().Resources[resource]; configured {
		return f.db.Fence(ctx, resource)
	}
	if f.current().OnlyKnown() {
		return nil, &fencing.Refusal{
			SQLState: "42704", // undefined_object
			Message:  fmt.Sprintf("resource %s is not configured", strconv.QuoteToASCII(resource)),
			Hint: "Fencepost accepts only the resources in its setting resources, because unknown_resources is deny. " +
				"Check fencepost.resource, or add the resource.",
		}
	}
	known, others, err := f.db.Known(ctx, resource, f.configured())
	if err != nil {
		return nil, err
	}
	if !known {
		select {
		case f.turn <- struct{}{}:
			defer func() { <-f.turn }()
		case <-ctx.Done():
			return nil, fmt.Errorf("wait to create resource %q: %w", resource, ctx.Err())
		}
		if known, others, err = f.mayMake(ctx, resource); err != nil {
			return nil, err
		}
	}
	fence, err := f.db.Fence(ctx, resource)
	if err != nil {
		return nil, err
	}
	if !known {
		f.warnOfNear(resource, append(others, f.configured()...))
	}
	return fence, nil
}

// warnOfNear warns if the name of a resource that was just created is close to one of the others.
func (f *fences) warnOfNear(resource string, others []string) {
	near := slices.DeleteFunc(others, func(other string) bool { return !config.Near(resource, other) })
	if len(near) > 0 {
		f.log.Warn("the name of a new resource is close to that of another one, and each has a leader of its own",
			zap.String("database", f.database), zap.String("resource", resource), zap.Strings("close_to", near[:min(len(near), table.MostNames)]),
			zap.String("remedy", config.NearRemedy))
	}
}

// mayMake returns what fence.Database.Known does, and a refusal if the database already has its maximum
// number of resources. Two proxies at once may exceed it by one.
func (f *fences) mayMake(ctx context.Context, resource string) (known bool, others []string, err error) {
	known, others, err = f.db.Known(ctx, resource, f.configured())
	limit := f.current().Limits.MaxResources
	if err != nil || known || len(others) < limit {
		return known, others, err
	}
	return false, nil, &fencing.Refusal{
		SQLState: "53400", // configuration_limit_exceeded
		Message: fmt.Sprintf("resource %s was not created: database %s has %d resources created by clients, and the limit is %d",
			strconv.QuoteToASCII(resource), strconv.QuoteToASCII(f.database), len(others), limit),
		Hint: "List the resource in Fencepost's setting resources, where it does not count, or raise limits.max_resources. Existing resources keep working.",
	}
}

// otherDescriptors is about how many descriptors a proxy needs in addition to its
// clients' and their server connections: for listeners, the connections of the control
// role and to the lease service, and a log.
const otherDescriptors = 64

// descriptorsFor returns how many descriptors a proxy with that many clients may need:
// one for each side of a connection, and the others.
func descriptorsFor(connections int) uint64 {
	return 2*uint64(connections) + otherDescriptors
}

// warnOfFewDescriptors warns if the process may open too few files for
// limits.max_connections. Connections above the limit then fail, and grants may fail
// too.
func warnOfFewDescriptors(log *zap.Logger, connections int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if want := descriptorsFor(connections); limit.Cur < want {
		log.Warn("the limit of open files is too low for limits.max_connections: raise the limit (ulimit -n, LimitNOFILE) or lower the setting",
			zap.Uint64("allowed", limit.Cur), zap.Uint64("wanted", want), zap.Int("max_connections", connections))
	}
	return nil
}
