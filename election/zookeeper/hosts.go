package zookeeper

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// hosts says which server to connect to next. Names are looked up for each connection, and not
// once when the client is made, as the library's own does. Each server is tried at once when a
// connection is lost, and then all of them after each pause of a second.
type hosts struct {
	mu        sync.Mutex
	servers   []string
	next      int
	left      int // servers to try before the next pause
	connected time.Time
}

var _ zk.HostProvider = (*hosts)(nil)

// Init implements zk.HostProvider.
func (h *hosts) Init(servers []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.servers = slices.Clone(servers)
	rand.Shuffle(len(h.servers), func(i, j int) { h.servers[i], h.servers[j] = h.servers[j], h.servers[i] })
	h.left = len(h.servers)
	return nil
}

// Len implements zk.HostProvider.
func (h *hosts) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.servers)
}

// Next implements zk.HostProvider. pause makes the library wait for a second, and fail the requests
// that it has not sent. A connection that was lost as soon as it was made counts as a failure.
func (h *hosts) Next() (server string, pause bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left == 0 || time.Since(h.connected) < time.Second {
		h.left, pause = len(h.servers), true
		h.connected = time.Time{}
	}
	h.left--
	server = h.servers[h.next%len(h.servers)]
	h.next++
	return server, pause
}

// Connected implements zk.HostProvider.
func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left, h.connected = len(h.servers), time.Now()
}
