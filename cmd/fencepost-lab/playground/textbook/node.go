package textbook

import (
	"slices"
	"time"
)

// phase is what a node does in an election.
type phase uint8

const (
	idle    phase = iota
	asking        // Bully: it waits for the answer of a node with a higher number
	waiting       // it waits for the result
)

// node is one node. The zero node with its number is one that was killed.
type node struct {
	c      *Cluster
	id     int
	alive  bool
	frozen bool
	side   int
	inbox  []message

	leader   int
	phase    phase
	deadline time.Duration // of the phase
	heard    time.Duration // when its leader was last heard of
	beatAt   time.Duration // when it sends its next heartbeat as the leader
}

// newNode returns a node that gives a leader, which may be there, the time to be heard.
func newNode(c *Cluster, id int) *node { return &node{c: c, id: id, alive: true, heard: c.now} }

// step does whatever is due, unless the node is frozen or was killed.
func (n *node) step() {
	if !n.alive || n.frozen {
		return
	}
	inbox := n.inbox
	n.inbox = nil
	for _, m := range inbox {
		if n.c.algorithm == Bully {
			n.bully(m)
		} else {
			n.ring(m)
		}
	}
	switch now := n.c.now; {
	case n.phase == asking && now >= n.deadline: // nobody with a higher number is there
		n.win()
	case n.phase == waiting && now >= n.deadline: // there was no result
		n.elect()
	case n.phase == idle && n.leader == n.id && now >= n.beatAt:
		n.tellAll(message{kind: heartbeat, leader: n.id})
		n.beatAt = now + beatEvery
	case n.phase == idle && n.leader != n.id && now-n.heard >= n.patience():
		n.elect()
	}
}

// patience differs by node, so that they do not all begin an election at once.
func (n *node) patience() time.Duration {
	return missedAfter + time.Duration(len(n.c.nodes)-n.id)*Tick
}

// elect begins an election.
func (n *node) elect() {
	n.leader = 0
	if n.c.algorithm == Ring {
		n.phase, n.deadline = waiting, n.c.now+resultWait
		n.c.send(message{from: n.id, to: n.c.next(n), kind: election, ids: []int{n.id}})
		return
	}
	n.phase, n.deadline = asking, n.c.now+answerWait
	if n.id == len(n.c.nodes) {
		n.win()
		return
	}
	for id := n.id + 1; id <= len(n.c.nodes); id++ {
		n.c.send(message{from: n.id, to: id, kind: election})
	}
}

// win makes the node believe that it leads, and tells the others.
func (n *node) win() {
	n.follow(n.id)
	n.tellAll(message{kind: coordinator, leader: n.id})
}

// follow makes the node believe that this one leads.
func (n *node) follow(leader int) {
	n.leader, n.phase, n.heard, n.beatAt = leader, idle, n.c.now, n.c.now+beatEvery
}

func (n *node) tellAll(m message) {
	for id := 1; id <= len(n.c.nodes); id++ {
		if id != n.id {
			m.from, m.to = n.id, id
			n.c.send(m)
		}
	}
}

// bully acts on a message of the Bully algorithm.
func (n *node) bully(m message) {
	switch {
	case m.kind == election:
		n.c.send(message{from: n.id, to: m.from, kind: answer})
		if n.leader == n.id {
			n.c.send(message{from: n.id, to: m.from, kind: coordinator, leader: n.id})
		} else if n.phase == idle {
			n.elect()
		}
	case m.kind == answer && n.phase == asking:
		n.phase, n.deadline = waiting, n.c.now+resultWait
	case m.kind == answer: // it comes too late to matter
	case m.leader < n.id: // whoever has a lower number does not lead while this node is there
		if n.phase == idle && n.leader != n.id {
			n.elect()
		}
	case m.kind == coordinator, n.leader == m.leader, m.leader > n.leader:
		n.follow(m.leader)
	}
}

// ring acts on a message of the Ring algorithm.
func (n *node) ring(m message) {
	switch {
	case m.kind == election && m.ids[0] == n.id: // it has been around
		n.follow(slices.Max(m.ids))
		n.pass(message{kind: coordinator, leader: n.leader, ids: []int{n.id}})
	case m.kind == election && slices.Contains(m.ids, n.id): // whoever began it has gone
	case m.kind == election:
		n.phase, n.deadline = waiting, n.c.now+resultWait
		n.pass(message{kind: election, ids: append(slices.Clone(m.ids), n.id)})
	case m.kind == coordinator && slices.Contains(m.ids, n.id): // everybody knows
	case m.kind == coordinator:
		n.follow(m.leader)
		n.pass(message{kind: coordinator, leader: m.leader, ids: append(slices.Clone(m.ids), n.id)})
	case n.leader == m.leader:
		n.heard = n.c.now
	case n.phase == idle && n.leader != 0: // there are two leaders
		n.elect()
	case n.phase == idle: // it has just started
		n.follow(m.leader)
	}
}

func (n *node) pass(m message) {
	m.from, m.to = n.id, n.c.next(n)
	n.c.send(m)
}
