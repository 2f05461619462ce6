//go:build !race

package lockorder

import "sync"

// Mutex is a sync.Mutex that has a place in the order. It may be unlocked by another goroutine.
type Mutex[P Place] struct{ sync.Mutex }
