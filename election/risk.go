package election

// RiskKind says what can happen to a lease service that works.
type RiskKind uint8

const (
	// RiskNotSaved: it forgets leases when it restarts.
	RiskNotSaved RiskKind = iota
	// RiskNotReplicated: it forgets leases when another server takes its place.
	RiskNotReplicated
)

// Risk is something about a lease service that can cost leaders their leases. It never puts the
// order of epochs at risk.
type Risk struct {
	Kind   RiskKind
	Seen   string // what was seen
	Remedy string // what an operator can do
}
