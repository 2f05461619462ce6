//go:build !linux

package election

import "time"

var started = time.Now()

// Boottime returns a monotonic time. Without CLOCK_BOOTTIME it may stop while the
// machine is suspended; the check in the database is the guarantee in any case.
func Boottime() time.Duration { return time.Since(started) }
