package protocol

import (
	"strings"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
)

// endSQL fails with 22023 when it runs in a block, since the name is too long,
// and ends the block: so does PREPARE TRANSACTION whenever Postgres refuses it,
// and there are drivers that send no ROLLBACK then.
var endSQL = "PREPARE TRANSACTION '" + strings.Repeat("refused by Fencepost, ", 10) + "'"

const endCode = "22023"

// endsBlock reports whether a refused statement is a PREPARE TRANSACTION in what
// is known to be a block.
func (m *Machine) endsBlock(r *fencing.Refusal, s *statement) bool {
	return r == fencing.TwoPhaseRefusal && m.txn.Settled() && m.txn.State() == gate.InBlock &&
		(s.info.PreparesTransaction || s.guess.StartsWithPrepareTransaction)
}

// endBlock refuses s by extended messages, and ends the block it stands in.
// Behind that nothing can run: should the first text not fail, the second does.
func (m *Machine) endBlock(r *fencing.Refusal, s *statement, p *gate.Plan) {
	at, name := len(m.scratch), m.checks.ownName()
	m.scratch = wire.AppendCloseStatement(m.scratch, name)
	m.scratch = wire.AppendParse(m.scratch, name, endSQL)
	m.scratch = wire.AppendRun(m.scratch, name, name)
	m.scratch = wire.AppendCloseStatement(m.scratch, name)
	m.scratch = wire.AppendParse(m.scratch, name, raiseSQL)
	p.Own(m.scratch[at:])
	for _, k := range []kind{closing, parse, run, closing, parse} {
		e := m.push(k, own)
		e.check, e.refuse, e.stmt = refusal, r, s
	}
}
