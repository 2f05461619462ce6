package textbook

import (
	"slices"
	"time"
)

// Cluster is nodes and the network between them. It is not safe for concurrent use.
type Cluster struct {
	algorithm Algorithm
	nodes     []*node // by number, beginning with 1
	flight    []message
	now       time.Duration
}

// kind says what a message means.
type kind uint8

const (
	election    kind = iota // Bully: an election has begun. Ring: ids are those that it has passed
	answer                  // Bully: a node with a higher number is there
	coordinator             // leader leads from now on
	heartbeat               // leader still leads
)

// message is a message on its way, or one that has arrived at a node that is frozen.
type message struct {
	at       time.Duration // when it arrives
	from, to int
	kind     kind
	leader   int
	ids      []int // Ring
}

// New returns a cluster of n nodes that have just started.
func New(a Algorithm, n int) *Cluster {
	c := &Cluster{algorithm: a}
	for id := 1; id <= n; id++ {
		c.nodes = append(c.nodes, newNode(c, id))
	}
	return c
}

// Views returns what can be seen of all nodes.
func (c *Cluster) Views() []View {
	views := make([]View, 0, len(c.nodes))
	for _, n := range c.nodes {
		views = append(views, View{ID: n.id, Alive: n.alive, Frozen: n.frozen, Side: n.side, Leader: n.leader, Electing: n.phase != idle})
	}
	return views
}

// Advance lets time pass: messages arrive, and nodes act on them and on what they have waited for.
func (c *Cluster) Advance(by time.Duration) {
	for end := c.now + by; c.now+Tick <= end; {
		c.now += Tick
		c.deliver()
		for _, n := range c.nodes {
			n.step()
		}
	}
}

// Freeze stops a node as a pause of its garbage collector does: messages to it wait.
func (c *Cluster) Freeze(id int) { c.node(id).frozen = true }

// Thaw lets a frozen node go on where it was.
func (c *Cluster) Thaw(id int) { c.node(id).frozen = false }

// Kill ends a node. It forgets everything.
func (c *Cluster) Kill(id int) {
	n := c.node(id)
	*n = node{c: c, id: id, side: n.side}
}

// Start starts a node that was killed.
func (c *Cluster) Start(id int) {
	n := c.node(id)
	if !n.alive {
		side := n.side
		*n = *newNode(c, id)
		n.side = side
	}
}

// Move moves a node to another side of the network. Nodes on different sides do not reach each other.
func (c *Cluster) Move(id, side int) { c.node(id).side = side }

func (c *Cluster) node(id int) *node { return c.nodes[id-1] }

// send puts a message on its way.
func (c *Cluster) send(m message) {
	m.at = c.now + latency
	c.flight = append(c.flight, m)
}

// deliver gives the messages that arrive now to their nodes. The network loses those whose sender
// and receiver are on different sides by then, and those to nodes that were killed.
func (c *Cluster) deliver() {
	c.flight = slices.DeleteFunc(c.flight, func(m message) bool {
		if m.at > c.now {
			return false
		}
		to := c.node(m.to)
		if to.alive && to.side == c.node(m.from).side {
			to.inbox = append(to.inbox, m)
		}
		return true
	})
}

// next returns the node that follows in the ring. Nodes that acknowledge nothing are skipped: those
// that were killed, are frozen, or are on another side. The node itself follows if it is alone.
func (c *Cluster) next(of *node) int {
	for i := range len(c.nodes) {
		n := c.nodes[(of.id+i)%len(c.nodes)]
		if n.alive && !n.frozen && n.side == of.side {
			return n.id
		}
	}
	return of.id
}
