package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
)

// fences opens the fences of one database within limits, because clients name the
// resources, and each has a permanent row and sequence.
type fences struct {
	store      *store.Store
	database   string
	limits     config.Limits
	configured []string      // always allowed
	turn       chan struct{} // cap 1; held while a resource is created
}

func newFences(st *store.Store, database string, cfg config.Config) *fences {
	return &fences{
		store: st, database: database, limits: cfg.Limits,
		configured: slices.Collect(maps.Keys(cfg.Resources)), turn: make(chan struct{}, 1),
	}
}

// open implements election.Backend's Fence. A resource that may not be created is
// refused with a *fencing.Refusal.
func (f *fences) open(ctx context.Context, resource string) (election.Fence, error) {
	if slices.Contains(f.configured, resource) {
		return f.store.Fence(ctx, resource)
	}
	if f.limits.ConfiguredResourcesOnly {
		return nil, &fencing.Refusal{
			SQLState: "42704", // undefined_object
			Message:  fmt.Sprintf("resource %s is not configured", strconv.QuoteToASCII(resource)),
			Hint: "Fencepost accepts only the resources in its setting resources, because limits.configured_resources_only is true. " +
				"Check fencepost.resource, or add the resource.",
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
			return nil, fmt.Errorf("wait to create resource %q: %w", resource, ctx.Err())
		}
		if err := f.mayMake(ctx, resource); err != nil {
			return nil, err
		}
	}
	return f.store.Fence(ctx, resource)
}

// mayMake returns a refusal if the database already has its maximum number of
// resources. Two proxies at once may exceed it by one.
func (f *fences) mayMake(ctx context.Context, resource string) error {
	known, others, err := f.store.Known(ctx, resource, f.configured)
	if err != nil || known || others < f.limits.MaxResources {
		return err
	}
	return &fencing.Refusal{
		SQLState: "53400", // configuration_limit_exceeded
		Message: fmt.Sprintf("resource %s was not created: database %s has %d resources created by clients, and the limit is %d",
			strconv.QuoteToASCII(resource), strconv.QuoteToASCII(f.database), others, f.limits.MaxResources),
		Hint: "List the resource in Fencepost's setting resources, where it does not count, or raise limits.max_resources. Existing resources keep working.",
	}
}
