package protocol

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
)

// checks holds the SQL that a session puts in front of its client's, and the
// names under which it is prepared on the server. The names are random, so that
// no client meets them by accident, and change whenever the statements have to
// be prepared anew.
type checks struct {
	fence               int32
	resource            string
	worker, incarnation string
	checkSQL, frontSQL  string // "" in ModeReadOnly
	nonce               string
	generation          int
	prepared            bool   // they were sent to the server
	batch               uint64 // in that batch
	confirmed           bool   // and the server has said so
	checkName, readName string
	frontName           string // of the check where nothing stands in front
	portal              string // also of a statement that is prepared for one message
	used                bool   // such a one was sent
	// replaced are the names of the last ones, which may be on the server still, and
	// that of a text which was prepared for one message, and is if that has failed.
	replaced []string

	announced, held fencing.Epoch // the parameters for which the bytes below hold
	built           bool
	checkRun        []byte // Bind, Execute, Close of the check
	frontRun        []byte
	readRun         []byte
	checkText       []byte // EXECUTE …; in front of a Query
	frontText       []byte
	readText        []byte
}

// raiseSQL fails while it is parsed, with 22P02: it takes the place of what the
// proxy itself refuses, so that the error stands where Postgres puts it. Its
// text is replaced by that of the refusal.
const (
	raiseSQL  = `SELECT 'refused by Fencepost'::pg_catalog.int4`
	raiseCode = "22P02"
)

// maxReplaced bounds the names that are closed with the next checks.
const maxReplaced = 16

func newChecks(fence int32, resource, worker, incarnation string) checks {
	c := checks{nonce: newNonce(), fence: fence, resource: resource, worker: worker, incarnation: incarnation}
	if incarnation != "" {
		c.checkSQL = fencing.CheckSQL(fence, worker, incarnation)
		c.frontSQL = fencing.FrontCheckSQL(fence, worker, incarnation)
	}
	c.rename()
	return c
}

// newNonce returns what nobody can guess of a name, 60 bits, in lower case.
func newNonce() string { return strings.ToLower(rand.Text()[:12]) }

// rename takes new names, under which nothing is prepared yet.
func (c *checks) rename() {
	if c.prepared {
		c.replaced = append(c.replaced, c.checkName, c.frontName, c.readName)
	}
	if c.used {
		c.replaced = append(c.replaced, c.portal)
	}
	c.replaced = c.replaced[max(0, len(c.replaced)-maxReplaced):]
	if c.generation++; c.generation > 1 {
		c.nonce = newNonce() // the last names can be seen: the next must not be told from them
	}
	suffix := c.nonce + "_" + strconv.Itoa(c.generation)
	c.checkName, c.readName, c.portal = "fencepost_check_"+suffix, "fencepost_read_"+suffix, "fencepost_"+suffix
	c.frontName = c.checkName + "_front"
	c.prepared, c.confirmed, c.built, c.used = false, false, false, false
}

// sent reports whether the server may have checks prepared.
func (c *checks) sent() bool { return c.prepared || c.used || len(c.replaced) > 0 }

// ownName is the name of a statement that is prepared for one message, and closed in
// front of the next and after it. It is left behind where that message fails.
func (c *checks) ownName() string {
	c.used = true
	return c.portal
}

// appendClose appends the messages that close all checks, and takes new names.
// The server skips them behind an error, so they are closed again with the next.
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
		push(closing, own)
	}
	c.replaced = c.replaced[:0]
	if c.checkSQL != "" {
		dst = wire.AppendParse(dst, c.checkName, c.checkSQL)
		push(parse, from).check = fullCheck
		dst = wire.AppendParse(dst, c.frontName, c.frontSQL)
		push(parse, from).check = fullCheck
	}
	dst = wire.AppendParse(dst, c.readName, fencing.ReadOnlySQL)
	e := push(parse, from)
	e.check, e.prepares = readOnly, c.generation
	c.prepared, c.confirmed, c.batch = true, false, batch
	return dst
}

// usable reports whether the prepared checks can be named in a message of that
// batch: the server has them, or their Parse is in the same batch, which fails
// with it.
func (c *checks) usable(batch uint64) bool {
	return c.prepared && (c.confirmed || c.batch == batch)
}

// build makes the bytes of the checks for told and held.
func (c *checks) build(told, held fencing.Epoch) {
	if c.built && c.announced == told && c.held == held {
		return
	}
	c.announced, c.held, c.built = told, held, true
	toldBytes, heldBytes := binary.BigEndian.AppendUint64(nil, uint64(told)), binary.BigEndian.AppendUint64(nil, uint64(held))
	c.checkRun = wire.AppendRun(nil, c.portal, c.checkName, toldBytes, heldBytes)
	c.frontRun = wire.AppendRun(nil, c.portal, c.frontName, toldBytes)
	c.readRun = wire.AppendRun(nil, c.portal, c.readName)
	c.checkText = fmt.Appendf(nil, "EXECUTE %s(%d,%d);", c.checkName, told, held)
	c.frontText = fmt.Appendf(nil, "EXECUTE %s(%d);", c.frontName, told)
	c.readText = []byte("EXECUTE " + c.readName + ";")
}

// run returns the messages that run the guard's check, which are prepared.
func (c *checks) run(g injectedCheck, front bool) []byte {
	switch {
	case g == readOnly:
		return c.readRun
	case front && c.announced == c.held:
		return c.frontRun
	default:
		return c.checkRun
	}
}

// Text returns what stands in front of a Query for the guard: an EXECUTE of
// what is prepared, or the same inline while that is not sure. front says that
// nothing stands in front of it in its transaction.
func (c *checks) text(g injectedCheck, front bool) []byte {
	switch {
	case c.confirmed && g == readOnly:
		return c.readText
	case c.confirmed && front && c.announced == c.held:
		return c.frontText
	case c.confirmed:
		return c.checkText
	default:
		return []byte(c.inline(g) + ";")
	}
}

// inline is the check as a statement that needs nothing prepared.
func (c *checks) inline(g injectedCheck) string {
	if g == readOnly {
		return fencing.ReadOnlySQL
	}
	return fencing.InlineCheckSQL(c.fence, c.worker, c.incarnation, c.announced, c.held)
}
