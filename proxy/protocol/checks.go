package protocol

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/wire"
)

// checks holds the SQL that a session puts in front of its client's, and the names under
// which it is prepared on the server. The names are random, so that no client meets them
// by accident. They begin unprepared, are sent, and are confirmed by the server. They end
// with rename, whenever the statements have to be prepared again.
type checks struct {
	fence               int32
	worker, incarnation string
	checkSQL, frontSQL  string        // "" in ModeReadOnly
	epoch               fencing.Epoch // of the candidacy, for which frontSQL is; 0 before the first
	claims              bool          // they set the claim that the triggers of guarded tables look for
	asks                bool          // there is a verdict among them
	// claimed is the epoch that the session has claimed at rest; 0 for none, or after what
	// may have taken that claim away.
	claimed fencing.Epoch

	nonce      string
	generation int // counts the names
	names      checkNames
	progress   checksProgress
	batch      uint64 // in which they were sent
	used       bool   // a statement was prepared for one message
	// replaced are the names of the last ones, which may be on the server still, and
	// that of a text which was prepared for one message, and is if that has failed.
	replaced []string

	built builtChecks
}

// checkNames are the names of prepared statements.
type checkNames struct {
	check, front, read string
	verdict            string
	portal             string // of all of them, and the name of what is prepared for one message
}

// checksProgress is how far the preparation of the checks has come.
type checksProgress uint8

const (
	checksUnprepared checksProgress = iota
	checksSent                      // good in their own batch, which fails with them
	checksConfirmed
)

// raiseSQL fails while it is parsed, with 22P02: it takes the place of what the
// proxy itself refuses, so that the error stands where Postgres puts it. Its
// text is replaced by that of the refusal.
const (
	raiseSQL  = `SELECT 'refused by Fencepost'::pg_catalog.int4`
	raiseCode = "22P02"
)

// maxReplaced bounds the names that are closed with the next checks.
const maxReplaced = 16

func newChecks(fence int32, worker, incarnation string, asks bool) checks {
	c := checks{nonce: newNonce(), fence: fence, worker: worker, incarnation: incarnation, asks: asks && incarnation != ""}
	c.write(0, false)
	return c
}

// write writes the checks, under new names if the server may have others.
func (c *checks) write(e fencing.Epoch, claims bool) {
	c.epoch, c.claims = e, claims
	if c.incarnation != "" {
		c.checkSQL = fencing.CheckSQL(c.fence, c.worker, c.incarnation, claims)
		c.frontSQL = fencing.FrontCheckSQL(c.fence, c.worker, c.incarnation, claims, e)
	}
	if c.generation == 0 || c.onServer() {
		c.rename()
	}
	c.built.valid = false
}

// follow writes the checks again if the candidacy has another epoch, or if the resource guards
// tables and they do not set the claim, or the other way round.
func (c *checks) follow(st *fencing.Status) {
	if claims := st.Holder.Guards > 0; claims != c.claims || st.Epoch != c.epoch && st.CanWrite() {
		c.write(st.Epoch, claims)
	}
}

// become writes the checks of another candidacy.
func (c *checks) become(fence int32, incarnation string) {
	c.fence, c.incarnation, c.claimed = fence, incarnation, 0
	c.write(0, c.claims)
}

// newNonce returns what nobody can guess of a name, 60 bits, in lower case.
func newNonce() string { return strings.ToLower(rand.Text()[:12]) }

// rename takes new names, under which nothing is prepared yet.
func (c *checks) rename() {
	if c.prepared() {
		c.replaced = append(c.replaced, c.names.check, c.names.front, c.names.read)
		if c.asks {
			c.replaced = append(c.replaced, c.names.verdict)
		}
	}
	if c.used {
		c.replaced = append(c.replaced, c.names.portal)
	}
	c.replaced = c.replaced[max(0, len(c.replaced)-maxReplaced):]
	if c.generation++; c.generation > 1 {
		c.nonce = newNonce() // the last names can be seen: the next must not be told from them
	}
	suffix := c.nonce + "_" + strconv.Itoa(c.generation)
	check := "fencepost_check_" + suffix
	c.names = checkNames{check: check, front: check + "_front", verdict: check + "_verdict", read: "fencepost_read_" + suffix, portal: "fencepost_" + suffix}
	c.progress, c.used, c.built.valid = checksUnprepared, false, false
}

// gone says that the server has none of them, and that their names may be the client's.
func (c *checks) gone() {
	c.rename()
	c.replaced = c.replaced[:0]
}

// prepared reports that they were sent to the server.
func (c *checks) prepared() bool { return c.progress >= checksSent }

// confirm says that the server has prepared them.
func (c *checks) confirm() {
	if c.progress != checksSent {
		panic("protocol: what was not sent is prepared")
	}
	c.progress = checksConfirmed
}

// onServer reports whether the server may have any of them.
func (c *checks) onServer() bool { return c.prepared() || c.used || len(c.replaced) > 0 }

// named reports whether a prepared statement of that name is one of the checks.
func (c *checks) named(name string) bool {
	return name == c.names.check || name == c.names.front || name == c.names.read || name == c.names.verdict
}

// mentioned reports whether a message has the name of one of the checks in it.
func (c *checks) mentioned(message string) bool {
	return strings.Contains(message, c.names.check) || strings.Contains(message, c.names.read)
}

// ownName is the name of a statement that is prepared for one message, and closed in
// front of the next and after it. It stays there where that message fails.
func (c *checks) ownName() string {
	c.used = true
	return c.names.portal
}

// appendClose appends the messages that close all checks, and takes new names.
// The server skips them after an error, so they are closed again with the next.
func (c *checks) appendClose(dst []byte, push func(kind, origin) *reply) []byte {
	c.rename()
	for _, name := range c.replaced {
		dst = wire.AppendCloseStatement(dst, name)
		push(closing, own)
	}
	return dst
}

// appendPrepare appends the messages that prepare the checks in a batch, and
// close those they replace, and pushes what they are owed. Closing what is gone
// already is no error. from is ownAhead if nothing of the client's fails with them.
func (c *checks) appendPrepare(dst []byte, batch uint64, from origin, push func(kind, origin) *reply) []byte {
	for _, name := range c.replaced {
		dst = wire.AppendCloseStatement(dst, name)
		push(closing, from)
	}
	c.replaced = c.replaced[:0]
	if c.checkSQL != "" {
		dst = wire.AppendParse(dst, c.names.check, c.checkSQL)
		push(parse, from).check = fullCheck
		dst = wire.AppendParse(dst, c.names.front, c.frontSQL)
		push(parse, from).check = fullCheck
	}
	if c.asks {
		dst = wire.AppendParse(dst, c.names.verdict, fencing.VerdictSQL(c.fence, c.worker, c.incarnation, c.claims))
		push(parse, from).check = fullCheck
	}
	dst = wire.AppendParse(dst, c.names.read, fencing.ReadOnlySQL)
	e := push(parse, from)
	e.check, e.prepares = readOnly, c.generation
	c.progress, c.batch = checksSent, batch
	return dst
}

// usable reports whether the prepared checks can be named in a message of that
// batch: the server has them, or their Parse is in the same batch, which fails
// with it.
func (c *checks) usable(batch uint64) bool {
	return c.progress == checksConfirmed || c.progress == checksSent && c.batch == batch
}

// builtChecks are the bytes of the prepared checks for two epochs, each built when it is first used, for many
// transactions. They are valid until the names or the epochs change.
type builtChecks struct {
	valid              bool
	announced, held    fencing.Epoch
	fresh              bool // front is for these epochs
	check, front, read builtCheck
	verdict            builtCheck
}

// builtCheck is one check in its two forms, nil until they are used.
type builtCheck struct {
	run  []byte // Bind, Execute, Close
	text []byte // EXECUTE …; in front of a Query
}

// build has the checks be for told and held.
func (c *checks) build(told, held fencing.Epoch) {
	if !c.built.valid || c.built.announced != told || c.built.held != held {
		c.built = builtChecks{valid: true, announced: told, held: held, fresh: told == held && held == c.epoch}
	}
}

// of returns a check. front says that nothing stands in front of it in its transaction.
func (b *builtChecks) of(g injectedCheck, front bool) *builtCheck {
	switch {
	case g == readOnly:
		return &b.read
	case g == verdict:
		return &b.verdict
	case front && b.fresh:
		return &b.front
	default:
		return &b.check
	}
}

// run returns the messages that run a check, which is prepared.
func (c *checks) run(g injectedCheck, front bool) []byte {
	b := c.built.of(g, front)
	if b.run == nil {
		var params [][]byte
		name, takesEpochs := c.nameOf(b)
		if takesEpochs {
			told, held := binary.BigEndian.AppendUint64(nil, uint64(c.built.announced)), binary.BigEndian.AppendUint64(nil, uint64(c.built.held))
			params = [][]byte{told, held}
		}
		b.run = bytes.Clone(wire.AppendRun(nil, c.names.portal, name, params...)) // which has grown larger
	}
	return b.run
}

// nameOf returns the name under which a check is prepared, and whether it takes the two epochs as parameters.
func (c *checks) nameOf(b *builtCheck) (name string, takesEpochs bool) {
	switch b {
	case &c.built.read:
		return c.names.read, false
	case &c.built.front:
		return c.names.front, false
	case &c.built.verdict:
		return c.names.verdict, true
	default:
		return c.names.check, true
	}
}

// text returns a check that stands in front of a Query: an EXECUTE of what is prepared, or
// the same inline while that is not sure.
func (c *checks) text(g injectedCheck, front bool) []byte {
	if c.progress != checksConfirmed {
		return []byte(c.inline(g) + ";")
	}
	b := c.built.of(g, front)
	if b.text == nil {
		params := ""
		name, takesEpochs := c.nameOf(b)
		if takesEpochs {
			params = fmt.Sprintf("(%d,%d)", c.built.announced, c.built.held)
		}
		b.text = []byte("EXECUTE " + name + params + ";")
	}
	return b.text
}

// inline is a check as a statement that needs nothing prepared.
func (c *checks) inline(g injectedCheck) string {
	switch g {
	case readOnly:
		return fencing.ReadOnlySQL
	case verdict:
		return fencing.InlineVerdictSQL(c.fence, c.worker, c.incarnation, c.claims, c.built.announced, c.built.held)
	}
	return fencing.InlineCheckSQL(c.fence, c.worker, c.incarnation, c.claims, c.built.announced, c.built.held)
}
