package gate

import "fmt"

// Plan is what goes to the server of one buffer of the client's input.
type Plan struct{ segments Segments }

// Reset begins a plan for in.
func (p *Plan) Reset(in []byte) { p.segments.Reset(in) }

// Bytes returns what to send as one slice. It copies only if there is more
// than one piece, into scratch, which it returns for the next use.
func (p *Plan) Bytes(scratch []byte) (out, next []byte) { return p.segments.Bytes(scratch) }

// Parts is Bytes, but that a plan of large pieces comes as it is: out, and after
// it the pieces in rest.
func (p *Plan) Parts(scratch []byte) (out []byte, rest [][]byte, next []byte) {
	return p.segments.Parts(scratch)
}

// Own sends messages that hold nothing of the client's. b must stay as it is
// until the plan was carried out.
func (p *Plan) Own(b []byte) { p.segments.Insert(b) }

// Relay sends on in[from:to], a message whose type can do nothing: Sync, Flush,
// Close, Terminate, CopyDone, CopyFail, or one that no server knows.
func (p *Plan) Relay(from, to int) {
	if Runs(p.segments.in[from]) {
		panic(fmt.Sprintf("gate: a message %q without a reason", p.segments.in[from]))
	}
	p.segments.Forward(from, to)
}

// Runs reports whether a message of this type may run something, so that it needs
// a reason.
func Runs(typ byte) bool {
	switch typ {
	case 'Q', 'P', 'B', 'D', 'E', 'F', 'd':
		return true
	default:
		return false
	}
}

// Gate lets a session's messages through. Its zero value is ready for use.
type Gate struct {
	rest int // bytes that are still to come of a message that has passed
}

// Pass sends on in[from:to] for the reason r: a message, or what belongs into
// one whose header is of the proxy's own. more bytes of it are still to come
// (see Rest).
func (g *Gate) Pass(p *Plan, from, to, more int, r Reason) {
	r.must()
	p.segments.Forward(from, to)
	g.rest = more
}

// PassText sends b, a message of the proxy's own with text of the client's in
// it. b must stay as it is until the plan was carried out.
func (g *Gate) PassText(p *Plan, b []byte, r Reason) {
	r.must()
	p.segments.Insert(b)
}

// CopyData sends on in[from:to]. It needs no reason of its own: the COPY it
// belongs to was begun by a Query or an Execute that had one, in whose
// transaction it is; outside a COPY the server ignores it.
func (g *Gate) CopyData(p *Plan, from, to, more int) {
	p.segments.Forward(from, to)
	g.rest = more
}

// Rest sends on in[from:to], more of a message that has passed.
func (g *Gate) Rest(p *Plan, from, to int) {
	if to-from > g.rest {
		panic("gate: more bytes than the message that has passed")
	}
	p.segments.Forward(from, to)
	g.rest -= to - from
}
