package proxy

import (
	"bytes"
	"testing"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/proxy/gate"
)

// Front says what stands in front of a Query in an idle session, or in a block
// that has not been checked yet: of a worker that leads, or does not.
func Front(t *testing.T, sql string, leads, inBlock bool) string {
	t.Helper()
	st := standings[1]
	if leads {
		st = standings[0]
	}
	m := fuzzMachine(fencedMode, st)
	m.checks.prepared, m.checks.confirmed = true, true
	if inBlock {
		m.txn.Answer(gate.Block, false)
		m.txAnnounced = m.announced
	}
	out := pumpUp(t, m, wire.AppendQuery(nil, []byte(sql)), 1<<20)
	switch {
	case m.registration.Held():
		return "registry"
	case bytes.Contains(out, []byte(raiseSQL)), bytes.Contains(out, []byte(endSQL)):
		return "refusal"
	case bytes.Contains(out, []byte("SET fencepost.")):
		return "value"
	case bytes.Contains(out, []byte(m.checks.checkName)):
		return "check"
	case bytes.Contains(out, []byte(m.checks.readName)):
		return "read only"
	}
	return "nothing"
}
