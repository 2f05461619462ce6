package doctor

import (
	"context"
	"fmt"

	"github.com/fencepost/fencepost/election/elector"
)

var (
	leaseNotSaved = newKind(Warning, "lease-not-saved",
		"When the lease service restarts, it has forgotten leases, and leaders lose theirs. No epoch is granted twice because of that.")
	leaseNotReplicated = newKind(Warning, "lease-not-replicated",
		"When another server takes its place, leases are forgotten, and leaders lose theirs. No epoch is granted twice because of that.")
	leaseNotRedundant = newKind(Warning, "lease-not-redundant",
		"When the lease service loses a server, it may stop, and leaders lose their leases.")
)

var riskKinds = map[elector.RiskKind]*kind{
	elector.RiskNotSaved:      leaseNotSaved,
	elector.RiskNotReplicated: leaseNotReplicated,
	elector.RiskNotRedundant:  leaseNotRedundant,
}

// risks asks the lease service what can cost leaders their leases.
func (f *Facts) risks(ctx context.Context, ask func(ctx context.Context) ([]elector.Risk, error)) {
	if ask == nil || f.Leases != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	found, err := ask(ctx)
	if err != nil {
		f.Failures = append(f.Failures, fmt.Sprintf("ask the lease service how it keeps its leases: %v", err))
	}
	f.Risks = found
}

// leaseRisks adds what can cost leaders their leases.
func (f *findings) leaseRisks(risks []elector.Risk) {
	for _, r := range risks {
		f.add(riskKinds[r.Kind], r.Seen, r.Remedy)
	}
}
