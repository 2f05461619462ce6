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
	// At is the address of the primary, as the operator says; "" if he does not. If several hosts
	// accept writes on the newest timeline, nothing else shows which of them it is.
	At string
	// Reads means that the command changes nothing, so that it may act at any primary.
	Reads bool
	// Notes is where it is said, and what the command waits for. Warnings is for what is wrong
	// with the hosts, and Out for the command's own output.
	Notes, Warnings, Out io.Writer
}

// take says which host is the primary, and returns it. It returns an error if another one may be.
func (a Aim) take(ctx context.Context, servers *upstream.Servers) (upstream.Primary, error) {
	if a.At != "" && !slices.Contains(servers.Addresses(), a.At) {
		return upstream.Primary{}, fmt.Errorf("--at is %s, which is not in upstream.address: %s", a.At, strings.Join(servers.Addresses(), ", "))
	}
	primary, err := servers.Primary(ctx)
	views := servers.Statuses()
	if err != nil || views == nil {
		return primary, err
	}
	others := seconds(views)
	if a.At != "" && a.At != primary.Address {
		return primary, elsewhere(a.At, primary.Address, others, views)
	}
	may := rivals(views)
	switch {
	case a.Reads:
		for _, v := range may {
			fmt.Fprintf(a.Warnings, "warning: %s %s\n", v.Address, v.Is)
		}
	case a.At == "" && len(may) > 0:
		return primary, doubtful(primary.Address, may)
	default:
		a.warn(primary.Address, views)
	}
	if a.At == "" && len(others) > 0 {
		fmt.Fprintf(a.Notes, "host %s is the one that is read: it comes first in upstream.address\n", primary.Address)
	} else {
		fmt.Fprintf(a.Notes, "host %s is the primary\n", primary.Address)
	}
	return primary, nil
}

// warn names the hosts that accept writes in addition to the one to act at: the command has no effect there.
func (a Aim) warn(at string, views []upstream.HostStatus) {
	for _, v := range views {
		if v.State == upstream.SecondPrimary || v.State == upstream.FormerPrimary {
			fmt.Fprintf(a.Warnings, "warning: %s %s. The command acts at %s only: whoever leads at %[1]s continues\n", v.Address, v.Is, at)
		}
	}
}

// elsewhere is the error of a command whose --at is not the host that would be taken.
func elsewhere(at, taken string, others, views []upstream.HostStatus) error {
	if len(others) == 0 {
		return fmt.Errorf("--at is %s, but %s is the primary, and %s", at, taken, is(views, at))
	}
	writing := []string{taken}
	for _, v := range others {
		writing = append(writing, v.Address)
	}
	return fmt.Errorf("--at is %s, but %s accept writes, and %s", at, strings.Join(writing, " and "), is(views, at))
}

// doubtful is the error of a command that changes nothing, because hosts other than the one to act
// at may be the primary.
func doubtful(at string, may []upstream.HostStatus) error {
	choice := fmt.Sprintf("If %s is the primary, run the command again with --at %[1]s", at)
	for _, v := range seconds(may) {
		choice += fmt.Sprintf("; if %s is, with --at %[1]s", v.Address)
	}
	return fmt.Errorf("nothing changed: %s would be the host to act at, but %s. %s", at, reasons(may, "may be the primary"), choice)
}

// reasons says what each of the hosts is, and what follows from that.
func reasons(of []upstream.HostStatus, follows string) string {
	all := make([]string, len(of))
	for i, v := range of {
		all[i] = v.Address + " " + v.Is
	}
	if len(all) == 1 {
		return all[0] + ", so that one " + follows
	}
	return strings.Join(all, "; ") + "; so that each of these " + follows
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
	views := servers.Statuses()
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
	if may := rivals(views); a.At == "" && len(may) > 0 {
		return fmt.Errorf("the command has had its effect at host %s, but %s. "+otherwise, acted.Address, reasons(may, "may be the primary now"), acted.Address)
	}
	return nil
}

// rivals are the hosts that may be the primary in place of the one that is taken for it.
func rivals(views []upstream.HostStatus) []upstream.HostStatus {
	return slices.DeleteFunc(slices.Clone(views), func(v upstream.HostStatus) bool {
		return v.State != upstream.Unreachable && v.State != upstream.SecondPrimary && v.State != upstream.OtherSystem
	})
}

// seconds are the hosts that accept writes on the timeline of the one that is taken for the primary,
// which is taken for it only because it comes first.
func seconds(views []upstream.HostStatus) []upstream.HostStatus {
	return slices.DeleteFunc(slices.Clone(views), func(v upstream.HostStatus) bool { return v.State != upstream.SecondPrimary })
}

func viewOf(views []upstream.HostStatus, address string) upstream.HostStatus {
	for _, v := range views {
		if v.Address == address {
			return v
		}
	}
	return upstream.HostStatus{Address: address, Is: "is unknown"}
}

// is says what a host is.
func is(views []upstream.HostStatus, address string) string {
	v := viewOf(views, address)
	return v.Address + " " + v.Is
}
