package hosts

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/upstream"
)

// Aim says at which host a command is to act, if there are several. A command looks at the hosts
// while it runs and remembers nothing, so it can take a former primary for the primary while the
// new one does not answer.
type Aim struct {
	// At is the address of the primary, as the operator says; "" if he does not.
	At string
	// Reads means that the command changes nothing, so that it may act at any primary.
	Reads bool
	// Notes is where it is said, and what the command waits for. Out is for the command's
	// own output.
	Notes, Out io.Writer
}

// take says which host is the primary, and returns it. It returns an error if another one may be.
func (a Aim) take(ctx context.Context, servers *upstream.Servers) (upstream.Primary, error) {
	if a.At != "" && !slices.Contains(servers.Addresses(), a.At) {
		return upstream.Primary{}, fmt.Errorf("--at is %s, which is not in upstream.address: %s", a.At, strings.Join(servers.Addresses(), ", "))
	}
	primary, err := servers.Primary(ctx)
	views := servers.Views()
	if err != nil || views == nil {
		return primary, err
	}
	if a.At != "" && a.At != primary.Address {
		return primary, fmt.Errorf("--at is %s, but %s is the primary, and %s", a.At, primary.Address, is(views, a.At))
	}
	for _, v := range rivals(views) {
		if a.Reads {
			fmt.Fprintf(a.Notes, "warning: %s %s\n", v.Address, v.Is)
		} else if a.At == "" {
			return primary, fmt.Errorf("nothing changed: %s would be the host to act at, but %s %s, so that one may be the primary. "+
				"If %s is the primary, run the command again with --at %[1]s", primary.Address, v.Address, v.Is, primary.Address)
		}
	}
	fmt.Fprintf(a.Notes, "host %s is the primary\n", primary.Address)
	return primary, nil
}

// confirm returns the error of a command that has acted at the primary: err, which is its own,
// unless that host may not have been the primary until the command had its effect.
func (a Aim) confirm(ctx context.Context, servers *upstream.Servers, acted upstream.Primary, err error) error {
	if err == nil && !a.Reads {
		servers.Look(ctx)
	}
	if demoted := context.Cause(acted.Tenure); demoted != nil {
		return fmt.Errorf("the command was given at host %s, but %w. What it may have changed there does not count: run it again", acted.Address, demoted)
	}
	views := servers.Views()
	if views == nil || a.Reads && err == nil {
		return err
	}
	if err != nil {
		if v := viewOf(views, acted.Address); v.State != upstream.IsPrimary {
			return fmt.Errorf("%w. The command was given at host %s, which %s: when there is a primary, look whether the command has had its effect there", err, v.Address, v.Is)
		}
		return err
	}
	const otherwise = "If %s is still the primary, there is nothing to do; otherwise run the command again"
	_, err = servers.Primary(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx) // the hosts have not been looked at
	}
	if err != nil {
		return fmt.Errorf("the command has had its effect at host %s, but whether that is still the primary is unknown: %w. "+otherwise, acted.Address, err, acted.Address)
	}
	for _, v := range rivals(views) {
		if a.At == "" {
			return fmt.Errorf("the command has had its effect at host %s, but %s %s, so that one may be the primary now. "+otherwise, acted.Address, v.Address, v.Is, acted.Address)
		}
	}
	return nil
}

// rivals are the hosts that may be the primary in place of the one that is taken for it.
func rivals(views []upstream.View) []upstream.View {
	return slices.DeleteFunc(slices.Clone(views), func(v upstream.View) bool {
		return v.State != upstream.Unreachable && v.State != upstream.SecondPrimary && v.State != upstream.OtherSystem
	})
}

func viewOf(views []upstream.View, address string) upstream.View {
	for _, v := range views {
		if v.Address == address {
			return v
		}
	}
	return upstream.View{Address: address, Is: "is unknown"}
}

// is says what a host is.
func is(views []upstream.View, address string) string {
	v := viewOf(views, address)
	return v.Address + " " + v.Is
}
