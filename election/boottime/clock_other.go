//go:build !linux

package boottime

import "time"

var started = time.Now()

// Now returns a monotonic time. Without CLOCK_BOOTTIME it may stop while the
// machine is suspended; the check in the database is the guarantee in any case.
func Now() time.Duration { return time.Since(started) }
