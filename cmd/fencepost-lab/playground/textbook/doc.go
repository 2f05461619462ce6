// Package textbook has two leader elections as textbooks describe them: Bully (Garcia-Molina) and Ring
// (Chang and Roberts). A Cluster is some nodes and the network between them, which can be partitioned.
// Everything is in memory and moved by Advance, so it needs no clock and no goroutine.
//
// Neither algorithm has terms, a quorum, or a memory that survives a crash. When the network is
// partitioned, each part elects a leader of its own; when a leader is frozen, the others elect another
// one, and the first one still believes that it leads when it is thawed. The playground shows that this
// does no harm to data that are written through Fencepost.
package textbook

import "time"

// Algorithm says how the nodes elect their leader.
type Algorithm uint8

const (
	// Bully: a node that misses its leader asks all nodes with a higher number, and leads if
	// none of them answers.
	Bully Algorithm = iota
	// Ring: a node that misses its leader sends a message around the ring, in which each node
	// enters its number, and the highest number leads.
	Ring
)

// The times of the nodes and of their network. They are slow enough to be watched.
const (
	Tick        = 100 * time.Millisecond
	latency     = 100 * time.Millisecond  // of a message
	beatEvery   = 400 * time.Millisecond  // how often a leader sends a heartbeat
	missedAfter = 1600 * time.Millisecond // without a heartbeat, after which a node misses its leader
	answerWait  = 400 * time.Millisecond  // for the answer of a node with a higher number
	resultWait  = 1200 * time.Millisecond // for the result of an election
)

// View is what can be seen of a node from outside.
type View struct {
	ID     int  // from 1
	Alive  bool // false: killed
	Frozen bool
	Side   int // which part of the network it is in; 0 unless it was moved
	// Leader is the node that this one believes to lead, 0 if it knows of none. It is
	// meaningless for a node that is not alive.
	Leader   int
	Electing bool
}

// Leads reports whether the node believes that it leads itself.
func (v View) Leads() bool { return v.Alive && v.Leader == v.ID }
