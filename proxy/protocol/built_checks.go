package protocol

import (
	"encoding/binary"
	"fmt"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
)

// builtChecks are the bytes of the prepared checks for two epochs, so that they are built
// once for many transactions. They are valid until the names or the epochs change.
type builtChecks struct {
	valid              bool
	announced, held    fencing.Epoch
	check, front, read builtCheck
}

// builtCheck is one check in its two forms.
type builtCheck struct {
	run  []byte // Bind, Execute, Close
	text []byte // EXECUTE …; in front of a Query
}

// build makes the bytes of the checks for told and held.
func (c *checks) build(told, held fencing.Epoch) {
	if c.built.valid && c.built.announced == told && c.built.held == held {
		return
	}
	toldBytes, heldBytes := binary.BigEndian.AppendUint64(nil, uint64(told)), binary.BigEndian.AppendUint64(nil, uint64(held))
	c.built = builtChecks{
		valid: true, announced: told, held: held,
		check: builtCheck{
			run:  wire.AppendRun(nil, c.names.portal, c.names.check, toldBytes, heldBytes),
			text: fmt.Appendf(nil, "EXECUTE %s(%d,%d);", c.names.check, told, held),
		},
		front: builtCheck{
			run:  wire.AppendRun(nil, c.names.portal, c.names.front, toldBytes),
			text: fmt.Appendf(nil, "EXECUTE %s(%d);", c.names.front, told),
		},
		read: builtCheck{
			run:  wire.AppendRun(nil, c.names.portal, c.names.read),
			text: fmt.Appendf(nil, "EXECUTE %s;", c.names.read),
		},
	}
}

// of returns the bytes of a check. front says that nothing stands in front of it in its
// transaction.
func (b *builtChecks) of(g injectedCheck, front bool) *builtCheck {
	switch {
	case g == readOnly:
		return &b.read
	case front && b.announced == b.held:
		return &b.front
	default:
		return &b.check
	}
}

// run returns the messages that run a check, which is prepared.
func (c *checks) run(g injectedCheck, front bool) []byte { return c.built.of(g, front).run }

// text returns a check that stands in front of a Query: an EXECUTE of what is prepared, or
// the same inline while that is not sure.
func (c *checks) text(g injectedCheck, front bool) []byte {
	if c.progress == checksConfirmed {
		return c.built.of(g, front).text
	}
	return []byte(c.inline(g) + ";")
}

// inline is a check as a statement that needs nothing prepared.
func (c *checks) inline(g injectedCheck) string {
	if g == readOnly {
		return fencing.ReadOnlySQL
	}
	return fencing.InlineCheckSQL(c.fence, c.worker, c.incarnation, c.built.announced, c.built.held)
}
