package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
)

// fences opens the fences of one database, within limits: clients name the
// resources, and each has a row and a sequence that stay for good.
type fences struct {
	store      *store.Store
	database   string
	limits     LimitsConfig
	configured []string      // always allowed
	turn       chan struct{} // cap 1; held while a resource is made
}

func newFences(st *store.Store, database string, cfg Config) *fences {
	return &fences{
		store: st, database: database, limits: cfg.Limits,
		configured: slices.Collect(maps.Keys(cfg.Resources)), turn: make(chan struct{}, 1),
	}
}

// open is election.Backend's Fence. A resource that is not to be made gets a
// *fencing.Refusal.
func (f *fences) open(ctx context.Context, resource string) (election.Fence, error) {
	if slices.Contains(f.configured, resource) {
		return f.store.Fence(ctx, resource)
	}
	if f.limits.ConfiguredResourcesOnly {
		return nil, &fencing.Refusal{
			SQLState: "42704", // undefined_object
			Message:  fmt.Sprintf("resource %s is not configured", strconv.QuoteToASCII(resource)),
			Hint: "Fencepost takes the resources in its setting resources only, because limits.configured_resources_only is true. " +
				"Check fencepost.resource, or have the resource added.",
		}
	}
	known, _, err := f.store.Known(ctx, resource, f.configured)
	if err != nil {
		return nil, err
	}
	if !known {
		select {
		case f.turn <- struct{}{}:
			defer func() { <-f.turn }()
		case <-ctx.Done():
			return nil, fmt.Errorf("wait to make resource %q: %w", resource, ctx.Err())
		}
		if err := f.mayMake(ctx, resource); err != nil {
			return nil, err
		}
	}
	return f.store.Fence(ctx, resource)
}

// mayMake returns a refusal if the database has all the resources it may have.
// Two proxies can make one more each.
func (f *fences) mayMake(ctx context.Context, resource string) error {
	known, others, err := f.store.Known(ctx, resource, f.configured)
	if err != nil || known || others < f.limits.MaxResources {
		return err
	}
	return &fencing.Refusal{
		SQLState: "53400", // configuration_limit_exceeded
		Message: fmt.Sprintf("resource %s is not made: database %s has %d resources that clients made, and may have %d",
			strconv.QuoteToASCII(resource), strconv.QuoteToASCII(f.database), others, f.limits.MaxResources),
		Hint: "Name the resource in the setting resources of Fencepost, which is always allowed, or raise limits.max_resources. Resources that exist go on.",
	}
}
