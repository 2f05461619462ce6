//go:build race

package lockorder

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
)

// order has the places as they are taken.
var order = []any{Sending{}, Session{}, Workers{}, Worker{}, Elections{}, Resource{}, Patience{}}

// Mutex is a sync.Mutex that has a place in the order. It may be unlocked by another goroutine. It panics if it is
// taken out of order.
type Mutex[P Place] struct {
	mu     sync.Mutex
	holder int64 // guarded by mu
}

// Lock locks m.
func (m *Mutex[P]) Lock() {
	g := goroutine()
	var p P
	for _, other := range held.of(g) {
		if slices.Index(order, other) >= slices.Index(order, any(p)) {
			panic(fmt.Sprintf("lockorder: %T is taken by a goroutine that holds %T", p, other))
		}
	}
	m.mu.Lock()
	m.take(g)
}

// TryLock tries to lock m, and reports whether it has. Because it does not wait, it may do so out of order.
func (m *Mutex[P]) TryLock() bool {
	if !m.mu.TryLock() {
		return false
	}
	m.take(goroutine())
	return true
}

// Unlock unlocks m.
func (m *Mutex[P]) Unlock() {
	var p P
	held.remove(m.holder, p)
	m.mu.Unlock()
}

func (m *Mutex[P]) take(g int64) {
	m.holder = g
	var p P
	held.add(g, p)
}

// holders are the places of the locks that each goroutine holds.
type holders struct {
	mu sync.Mutex
	by map[int64][]any
}

var held = holders{by: map[int64][]any{}}

func (h *holders) of(g int64) []any {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.by[g]
}

func (h *holders) add(g int64, p any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.by[g] = append(slices.Clone(h.by[g]), p)
}

func (h *holders) remove(g int64, p any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := slices.Clone(h.by[g])
	if i := slices.Index(left, p); i >= 0 {
		left = slices.Delete(left, i, i+1)
	}
	if len(left) == 0 {
		delete(h.by, g)
		return
	}
	h.by[g] = left
}

// goroutine returns the number of the calling goroutine, which Go shows in its stack only.
func goroutine() int64 {
	var stack [64]byte
	line := stack[:runtime.Stack(stack[:], false)]
	number, _, _ := bytes.Cut(bytes.TrimPrefix(line, []byte("goroutine ")), []byte(" "))
	n, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("lockorder: the stack begins with %q", line))
	}
	return n
}
