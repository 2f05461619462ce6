package connection

import (
	"slices"

	"github.com/fencepost/fencepost/internal/wiretest"
)

// Short names for the messages of a client.
var (
	cat   = slices.Concat[[]byte]
	q     = wiretest.Query
	parse = wiretest.Parse
	bind  = wiretest.Bind
	exec  = wiretest.Execute
	sync_ = wiretest.Sync
	flush = wiretest.Flush
	run   = wiretest.Run
)
