// Package short has short names for the messages of a client. Tests that are mostly messages
// import it with a dot.
package short

import (
	"slices"

	"github.com/fencepost/fencepost/internal/wiretest"
)

// The messages, as package wiretest describes them.
var (
	Q     = wiretest.Query
	Parse = wiretest.Parse
	Bind  = wiretest.Bind
	Desc  = wiretest.Describe
	Exec  = wiretest.Execute
	Shut  = wiretest.Close
	Sync  = wiretest.Sync
	Flush = wiretest.Flush
	Run   = wiretest.Run
)

// Cat returns messages as one piece.
func Cat(messages ...[]byte) []byte { return slices.Concat(messages...) }

// Batch returns messages with a Sync after them as one piece.
func Batch(messages ...[]byte) []byte { return append(Cat(messages...), Sync()...) }
