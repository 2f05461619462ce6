package stopwatch

import (
	"os/exec"
	"sync"
	"time"
)

// SlowMachine reports whether this machine starts processes slowly, as some virtual machines do. Each connection to
// Postgres is a process, so that tests that run at the same time wait for each other there.
var SlowMachine = sync.OnceValue(func() bool {
	const slow = 2 * time.Millisecond // most machines need half of that to start and end a small process
	fastest := time.Hour
	for range 20 {
		began := time.Now()
		if exec.Command("true").Run() == nil {
			fastest = min(fastest, time.Since(began))
		}
	}
	return fastest >= slow
})

// TTL returns the TTL of leases that are renewed while other tests run: d, or twice as long on a slow machine. A
// request to the lease service has a third of it.
func TTL(d time.Duration) time.Duration {
	if SlowMachine() {
		return 2 * d
	}
	return d
}
