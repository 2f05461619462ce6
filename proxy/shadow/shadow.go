// Package shadow finds what a session of a resource with enforce: shadow does that enforce: on would
// refuse. The session itself is relayed, and nothing that is found changes a byte of it.
//
// With enforce: on, a worker that leads under the epoch which its client knows is relayed, and every
// other one may only read (package settled). So what is found are the writes of the others, and
// what a grant would end: a transaction that began while its worker led, and is still open when
// another one is granted an epoch.
package shadow

import (
	"cmp"
	"strconv"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// maxAnalyzed is the length of the longest text that is analyzed, because the event loop waits for
// that. Nothing is known of a longer one.
const maxAnalyzed = 16 << 10

// Config is what a Watch knows from the start.
type Config struct {
	Resource, Worker, Incarnation string
	Nameless                      bool // the client named no worker
	Version                       gate.Version
	Cache                         *sqltext.Cache // of analyses, shared by the sessions
	// Status returns the candidacy's status, and Trouble what keeps it from leading, or nil. Campaign
	// has it try to lead. They must not block.
	Status   func() *fencing.Status
	Trouble  func() *fencing.Trouble
	Campaign func()
	// Announced is the epoch that the client knows, 0 for none.
	Announced fencing.Epoch
}

// Watch follows one session. Its owner guards it by a lock. Until the server has answered everything, a
// Watch takes for granted that all of it succeeds.
type Watch struct {
	config         Config
	announced      fencing.Epoch // which the client knows, or would know with enforce: on
	names, portals entries

	status  byte // of the ReadyForQuery that answers the last message
	inBatch bool // messages of the extended protocol were sent without a Sync

	txn   transaction
	found []fencing.Rejection
}

// transaction is the transaction of the message in hand.
type transaction struct {
	announced fencing.Epoch // which the client knew when it began
	led       bool          // the worker led then, under that epoch
	wrote     bool          // it had more than reads
	recorded  bool          // it is in found
}

// New returns the Watch of a session that has sent nothing yet.
func New(c Config) *Watch {
	return &Watch{config: c, announced: c.Announced, status: 'I', names: entries{max: maxNames}, portals: entries{max: maxPortals}}
}

// Found returns what was found since the last call.
func (w *Watch) Found() []fencing.Rejection {
	found := w.found
	w.found = nil
	return found
}

// ClientSent follows a message of the client's that is relayed. body is all of a Query, Parse, Execute or
// Close, a Bind up to the end of its two names, and what has arrived of any other message. reading is
// how the server reads a text.
func (w *Watch) ClientSent(typ byte, body []byte, reading sqltext.Settings) {
	switch typ {
	case 'Q', 'F', 'P', 'B', 'D', 'E', 'C':
		if !w.inBatch && w.status == 'I' {
			w.beginTransaction()
		}
	}
	switch typ {
	case 'Q':
		w.query(body, reading)
	case 'F':
		w.ran(nil, []byte(sqltext.FunctionCall))
	case 'P', 'B', 'D', 'E', 'C':
		w.inBatch = true
		w.extended(typ, body, reading)
	case 'S':
		w.inBatch = false
	}
}

// Ready follows a ReadyForQuery with this status, by which everything that was seen is answered.
func (w *Watch) Ready(status byte) { w.status = status }

// beginTransaction begins a transaction.
func (w *Watch) beginTransaction() {
	st := w.config.Status()
	w.txn = transaction{announced: w.announced, led: st.CanWrite() && w.announced == st.Epoch}
	w.portals.clear()
}

// query follows a Query.
func (w *Watch) query(body []byte, reading sqltext.Settings) {
	sql, rest, ok := wire.CString(body)
	if !ok || len(rest) > 0 { // the server rejects it
		return
	}
	all, known := w.statements(sql, reading)
	if !known {
		w.ran(nil, sql)
	}
	for i := range all {
		w.ran(&all[i], sql)
	}
}

// extended follows a message of the extended protocol. What is not as it should be the server rejects.
func (w *Watch) extended(typ byte, body []byte, reading sqltext.Settings) {
	name, rest, _ := wire.CString(body)
	switch typ {
	case 'P':
		sql, _, _ := wire.CString(rest)
		w.names.set(name, w.parsed(sql, reading))
	case 'B':
		of, _, _ := wire.CString(rest)
		w.portals.set(name, w.names.get(of))
	case 'E':
		e := w.portals.get(name)
		w.ran(e.statement, e.text)
	case 'C':
		if of, _, ok := wire.CString(body[min(1, len(body)):]); ok && body[0] == 'S' {
			w.names.remove(of)
		} else if ok {
			w.portals.remove(of)
		}
	}
}

// parsed returns the entry of a statement with this text. The server rejects several of them.
func (w *Watch) parsed(sql []byte, reading sqltext.Settings) entry {
	e := entry{text: cut(sql)}
	switch all, known := w.statements(sql, reading); {
	case known && (len(all) != 1 || all[0].Read && all[0].Kind == sqltext.Ordinary):
		e.statement = plainRead
	case known:
		e.statement = &all[0]
	}
	return e
}

// statements returns the statements of a text. known is false if nothing is known of it.
func (w *Watch) statements(sql []byte, reading sqltext.Settings) (all []sqltext.Statement, known bool) {
	if len(sql) > maxAnalyzed {
		return nil, false
	}
	if st, quick := sqltext.Quick(sql); quick {
		return []sqltext.Statement{st}, true
	}
	if !sqltext.DependsOnSettings(sql) {
		reading = sqltext.DefaultSettings
	}
	t := w.config.Cache.AnalyzeBytes(sql, reading)
	return t.Statements, t.Known
}

// ran follows a statement with this text that the client runs. Nothing is known of one that is nil.
func (w *Watch) ran(s *sqltext.Statement, text []byte) {
	if s != nil && s.Does(sqltext.Executes) {
		if e := w.names.get([]byte(s.Name)); e.statement == nil || !e.statement.Does(sqltext.Executes) {
			s = e.statement
		}
	}
	if w.status != 'E' { // there, nothing runs but what ends the block
		w.check(s, text)
	}
	if s != nil {
		w.follow(s, text)
	}
}

// check records the statement if enforce: on would refuse it, or a grant would have ended its
// transaction, unless something of the transaction is recorded.
func (w *Watch) check(s *sqltext.Statement, text []byte) {
	st, t, write := w.config.Status(), &w.txn, w.writes(s)
	switch {
	case t.recorded, s != nil && s.Kind == sqltext.Rollback:
	case t.led && st.Role == fencing.Superseded:
		r := *w.superseded(st)
		r.Message += "; the grant would have waited for this transaction, and ended it after lease.grace"
		w.record(st, &r, s, text, write || t.wrote)
	case s != nil && s.Kind == sqltext.Refused:
		w.record(st, fencing.TwoPhaseRefusal, s, text, true)
	case write && !t.led:
		w.checkWrite(st, s, text)
	}
	t.wrote = t.wrote || write
}

// writes reports whether a session that may only read is refused s.
func (w *Watch) writes(s *sqltext.Statement) bool {
	return s == nil || !s.Read && !(s.Does(sqltext.ReadsSince16) && w.config.Version.KeepsReadOnly())
}

// checkWrite checks a write in a transaction that did not begin as a leader's. If the lease is vacant, the
// candidacy tries to lead, and nothing is recorded: the worker may lead in a moment.
func (w *Watch) checkWrite(st *fencing.Status, s *sqltext.Statement, text []byte) {
	switch r := w.refusal(st); {
	case r == nil:
	case st.Vacant && st.Fault == nil:
		w.config.Campaign()
	default:
		w.record(st, r, s, text, true)
		if r.SQLState == fencing.StateStartOver {
			w.announced = st.Epoch // by the refusal
		}
	}
}

// refusal is what a write would get, nil if the worker leads under the epoch that its client knew.
func (w *Watch) refusal(st *fencing.Status) *fencing.Refusal {
	c, announced := &w.config, w.txn.announced
	switch {
	case st.Fault != nil:
		return fencing.FaultRefusal(st.Fault)
	case st.CanWrite() && announced == st.Epoch:
		return nil
	case st.CanWrite() && announced != 0: // the client has named another epoch
		named := *st
		named.Epoch = announced
		return w.superseded(&named)
	case st.Role == fencing.Superseded:
		return w.superseded(st)
	}
	worker := fencing.RefusedWorker{Resource: c.Resource, Worker: c.Worker, Nameless: c.Nameless, Status: st, Trouble: c.Trouble()}
	return fencing.ReadOnlyRefusal(c.Resource, c.Worker, c.Incarnation, st).WithCause(worker)
}

func (w *Watch) superseded(st *fencing.Status) *fencing.Refusal {
	return fencing.SupersededRefusal(w.config.Resource, w.config.Worker, w.config.Incarnation, st)
}

// verb is Rejection.Verb of a statement of this text.
func verb(s *sqltext.Statement, text []byte) string {
	switch {
	case s != nil:
		return cmp.Or(s.Verb, s.Command.String())
	case string(text) == sqltext.FunctionCall:
		return fencing.VerbFunction
	default:
		return ""
	}
}

// record records what r would have refused.
func (w *Watch) record(st *fencing.Status, r *fencing.Refusal, s *sqltext.Statement, text []byte, write bool) {
	c := &w.config
	w.txn.recorded = true
	finding := fencing.Finding{Epoch: st.Epoch, Current: st.Holder.Epoch, Holder: st.Holder.Worker}
	w.found = append(w.found, fencing.Rejection{
		Resource: c.Resource, Worker: c.Worker, Incarnation: c.Incarnation,
		Announced: w.txn.announced, Held: st.Epoch,
		Finding: finding,
		Kind:    fencing.KindOf(c.Resource, r.SQLState, finding), SQLState: r.SQLState, Message: r.Message,
		Statement: string(text[:min(len(text), maxText)]), Write: write, Verb: verb(s, text), Shadow: true,
	})
}

// follow follows what a statement changes, if it succeeds.
func (w *Watch) follow(s *sqltext.Statement, text []byte) {
	switch {
	case s.Does(sqltext.EndsTransaction):
		w.status = 'I'
		if s.Does(sqltext.Chains) {
			w.status = 'T'
		}
		w.beginTransaction()
	case s.Kind == sqltext.Begin && w.status == 'I', s.Kind == sqltext.RollbackTo && w.status == 'E':
		w.status = 'T'
	case w.status == 'E':
	case s.Kind == sqltext.SetFence && s.Name == "epoch":
		if n, err := strconv.ParseInt(s.Value, 10, 64); err == nil && n >= 0 {
			w.announced = fencing.Epoch(n)
		}
	case s.Kind == sqltext.ShowFence && (s.Name == "role" || s.Name == "epoch"): // its answer would announce the epoch
		w.announced = 0
		if st := w.config.Status(); st.CanWrite() {
			w.announced = st.Epoch
		} else if st.Vacant {
			w.config.Campaign()
		}
	case s.Does(sqltext.Prepares):
		w.names.set([]byte(s.Name), entry{&sqltext.Statement{Read: s.Read, Verb: "EXECUTE"}, cut(text)})
	case s.Kind == sqltext.Deallocate && s.Name != "":
		w.names.remove([]byte(s.Name))
	case s.Kind == sqltext.Deallocate, s.Kind == sqltext.Discard && s.Name == "all":
		w.names.clear()
	}
}
