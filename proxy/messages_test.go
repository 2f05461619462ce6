package proxy_test

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
	shut  = wiretest.Close
	sync_ = wiretest.Sync
	run   = wiretest.Run
)
