//go:build !linux

package election

import "time"

var started = time.Now()

// Boottime returns a monotonic time. Where there is no CLOCK_BOOTTIME it may
// stand still while the machine is suspended; the check in the database is the
// guarantee in any case.
func Boottime() time.Duration { return time.Since(started) }
