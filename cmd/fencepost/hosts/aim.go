package hosts

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/upstream"
)

// Aim says at which host a command is to act, if there are several. A command looks at each host
// once and remembers nothing, so it can take a former primary for the primary while the new one
// does not answer.
type Aim struct {
	// At is the address of the primary, as the operator says; "" if he does not.
	At string
	// Reads means that the command changes nothing, so that it may act at any primary.
	Reads bool
	// Out is where it is said.
	Out io.Writer
}

// OpenOnce is Open for a command that does its work and ends.
func OpenOnce(ctx context.Context, cfg config.Config, database string, aim Aim) (*store.Store, error) {
	servers, err := Look(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := aim.take(ctx, servers); err != nil {
		return nil, err
	}
	return Open(ctx, cfg, servers, database, zap.NewNop(), nil)
}

// take says which host is the primary. It returns an error if another one may be.
func (a Aim) take(ctx context.Context, servers *upstream.Servers) error {
	if a.At != "" && !slices.Contains(servers.Addresses(), a.At) {
		return fmt.Errorf("--at is %s, which is not in upstream.address: %s", a.At, strings.Join(servers.Addresses(), ", "))
	}
	views := servers.Views()
	if views == nil {
		return nil
	}
	primary, err := servers.Primary(ctx)
	if err != nil {
		return err
	}
	if a.At != "" && a.At != primary.Address {
		return fmt.Errorf("--at is %s, but %s is the primary, and %s", a.At, primary.Address, is(views, a.At))
	}
	for _, v := range views {
		if v.State != upstream.Unreachable && v.State != upstream.SecondPrimary {
			continue
		}
		if a.Reads {
			fmt.Fprintf(a.Out, "warning: %s %s\n", v.Address, v.Is)
		} else if a.At == "" {
			return fmt.Errorf("nothing changed: %s would be the host to act at, but %s %s, so that one may be the primary. "+
				"If %s is the primary, run the command again with --at %[1]s", primary.Address, v.Address, v.Is, primary.Address)
		}
	}
	fmt.Fprintf(a.Out, "host %s is the primary\n", primary.Address)
	return nil
}

// is says what a host is.
func is(views []upstream.View, address string) string {
	for _, v := range views {
		if v.Address == address {
			return address + " " + v.Is
		}
	}
	return address + " is unknown"
}
