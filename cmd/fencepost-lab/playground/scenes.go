package playground

// The names of the scenes. They are part of the resources' names.
const (
	sceneLease   = "lease"
	sceneCrash   = "crash"
	scenePause   = "pause"
	sceneFree    = "free"
	sceneLeaders = "leaders"
)

var scenes = []*sceneDef{
	{name: sceneLease, steps: leaseSteps},
	{name: sceneCrash, steps: crashSteps},
	{name: scenePause, steps: pauseSteps},
	{name: sceneFree, steps: freeSteps},
	{name: sceneLeaders, elects: true, steps: leadersSteps},
}

// sceneNamed returns a scene, nil if there is none of that name.
func sceneNamed(name string) *sceneDef {
	for _, s := range scenes {
		if s.name == name {
			return s
		}
	}
	return nil
}

// errNoLeader is the error of a step that needs a leader when there is none.
const errNoLeader notNow = "nobody leads at the moment: wait until a worker does, and try again"

// begin is the first step of scenes in which Fencepost's own lease is competed for.
func begin(wrote int) *step {
	return &step{
		text:   "Three workers start. Each connects through Fencepost and campaigns for the lease. One of them is awarded it, is granted epoch 1, and begins to write.",
		button: "Start the workers",
		do:     (*Lab).startAllLocked,
		until:  func(l *Lab) bool { return l.leaderLocked() != nil && l.wroteLocked() >= wrote },
	}
}

func leaseSteps() []*step {
	var renewals int64
	return []*step{
		begin(1),
		{
			text:  "The leader writes a row in each transaction, and Fencepost renews its lease, three times per TTL. The epoch stays the same.",
			do:    func(l *Lab) error { renewals = l.mu.seen.lease.Renewals; return nil },
			until: func(l *Lab) bool { return l.mu.seen.lease.Renewals >= renewals+3 && l.wroteLocked() >= 3 },
		},
		{text: "The other workers are connected too. They may read, and wait for the lease. All this could go on for ever: go to the next scene, or freeze, kill or cut off a worker here."},
	}
}

func crashSteps() []*step {
	var killed *slot
	var epoch int64
	return []*step{
		begin(2),
		{
			text:   "The leader crashes. Its kernel closes its connection, and Fencepost releases its lease at once; nothing has to expire.",
			button: "Kill the leader",
			do: func(l *Lab) error {
				if killed = l.leaderLocked(); killed == nil {
					return errNoLeader
				}
				epoch = l.mu.seen.lease.Epoch
				return l.killLocked(killed)
			},
			until: func(l *Lab) bool { return l.mu.seen.lease.Epoch > epoch && l.wroteLocked() > 0 },
		},
		{
			text:   "Another worker leads under the next epoch, and goes on where the committed rows end. The dead one comes back as a process with a new id: it is not the leader.",
			button: "Start it again",
			do:     func(l *Lab) error { return l.startLocked(killed) },
			until:  func(l *Lab) bool { return killed.told.Role == "follower" },
		},
		{text: "It waits for the lease like the others."},
	}
}

func pauseSteps() []*step {
	var frozen *slot
	var epoch int64
	refused := 0
	return []*step{
		begin(2),
		{
			text:   "The leader is frozen in the middle of a transaction, as by a long garbage collection: it has read, and is about to write. Its process and its connection still exist.",
			button: "Freeze the leader while it writes",
			do: func(l *Lab) error {
				if frozen = l.leaderLocked(); frozen == nil {
					return errNoLeader
				}
				epoch, refused = l.mu.seen.lease.Epoch, frozen.refused
				return l.freezeWritingLocked(frozen)
			},
			until: func(*Lab) bool { return frozen.frozen },
		},
		{
			text:  "It gives no sign of life. After the worker timeout Fencepost releases its lease, another worker is awarded it, and the grant of the next epoch ends the open transaction.",
			until: func(l *Lab) bool { return l.mu.seen.lease.Epoch > epoch && l.wroteLocked() > 0 },
		},
		{
			text:   "The new leader writes. The frozen one still believes that it leads: nobody could tell it anything. Now the pause ends, and it sends its INSERT.",
			button: "Thaw it",
			do:     func(l *Lab) error { return l.thawLocked(frozen) },
			until:  func(l *Lab) bool { return frozen.refused > refused && l.auditedLocked(frozen) },
		},
		{text: "Its write was refused with ZF001, which names the worker that leads now. Nothing of it is in the table, and no number was written twice. The audit log has a line for it."},
	}
}

func freeSteps() []*step {
	return []*step{
		{
			text: "Three workers run. Freeze, kill and cut off whom you like, as often as you like. Whatever you do, no number is written twice, and the terms in the ledger do not overlap.",
			do:   (*Lab).startAllLocked,
		},
	}
}

func leadersSteps() []*step {
	var before int64
	var refused int64
	return []*step{
		{
			text:   "Five nodes start. They elect their leader themselves, by an algorithm without terms and without a quorum. Whoever is elected writes through the Fencepost beside it, where everybody who asks is awarded a lease.",
			button: "Start the nodes",
			do:     (*Lab).startAllLocked,
			until:  func(l *Lab) bool { return len(l.believersLocked()) > 0 && l.wroteLocked() >= 2 },
		},
		{
			text:   "The network between the nodes is partitioned. Two of them no longer hear of the leader, and elect another one.",
			button: "Partition the network",
			do:     func(l *Lab) error { refused = l.mu.refused; l.splitLocked(); return nil },
			until:  func(l *Lab) bool { return len(l.believersLocked()) == 2 },
		},
		{
			text:  "Now two nodes believe that they lead, and both write. Each of them was awarded a lease, and none was told of the other. The fence lets one of them write; the other one is refused with ZF001, which names the first.",
			until: func(l *Lab) bool { return l.mu.refused > refused && l.wroteLocked() > 0 },
		},
		{
			text:   "The one that was refused asks for a lease again after a while, because its cluster still says that it leads. So the two may take turns, but their terms do not overlap. The network heals.",
			button: "Heal the network",
			do:     func(l *Lab) error { before = l.mu.seen.totals.Written; l.healLocked(); return nil },
			until:  func(l *Lab) bool { return len(l.believersLocked()) == 1 && l.mu.seen.totals.Written > before+2 },
		},
		{text: "One leader is left. While there were two, no number was written twice: the election did not have to be right for that."},
	}
}
