package proxy

// handover is where the two pumps of a session wait for each other. The session's mu
// guards it.
type handover struct {
	// reading: up waits for bytes of the client. A read deadline in the past wakes it.
	reading bool
	// question is what down waits for up to answer, or nil.
	question *announcement
	// room is closed by down when the machine can take more from the client. It is nil
	// unless up waits for it.
	room chan struct{}
}

// takeQuestion returns the question that up must answer now, or nil. The caller answers
// it after it has released the session's mu.
func (h *handover) takeQuestion() *announcement {
	q := h.question
	h.question = nil
	return q
}

// wantRoom returns a channel that is closed when giveRoom is called.
func (h *handover) wantRoom() <-chan struct{} {
	h.room = make(chan struct{})
	return h.room
}

// giveRoom wakes up if it waits for room.
func (h *handover) giveRoom() {
	if h.room != nil {
		close(h.room)
		h.room = nil
	}
}

// announcement is a question of down: it holds back a reply that announces an epoch until
// up has said whether bytes of the client are pending.
type announcement struct {
	quiet chan bool     // the answer of up; buffered, so that up does not wait
	sent  chan struct{} // closed by down when the reply has been sent
}

func newAnnouncement() *announcement {
	return &announcement{quiet: make(chan bool, 1), sent: make(chan struct{})}
}

// answer says whether no bytes of the client are pending. If none are, it returns when
// the reply has been sent, so that up reads nothing before that. Otherwise it returns at
// once, because the client may read the reply only after the proxy has read from it.
func (a *announcement) answer(quiet bool) {
	a.quiet <- quiet
	if quiet {
		<-a.sent
	}
}

// announce sends a reply that announces an epoch to the client. The epoch counts as
// announced only if no bytes of the client are pending: every byte that arrives later was
// then sent by a client that could know the epoch. Otherwise the machine announces the
// epoch again the next time the session is quiet.
func (x *session) announce(out []byte) error {
	x.mu.Lock()
	if x.life.phase() == phaseEnding || !x.m.Quiet() {
		x.mu.Unlock()
		return x.toClient(out)
	}
	a := newAnnouncement()
	x.pumps.question = a
	if x.pumps.reading {
		_ = x.client.SetReadDeadline(aLongTimeAgo)
	}
	x.mu.Unlock()
	defer close(a.sent)
	if <-a.quiet {
		x.mu.Lock()
		x.m.Announced()
		x.mu.Unlock()
	}
	return x.toClient(out)
}

// wakeUp wakes up if it can send something again, or end a draining session.
func (x *session) wakeUp() {
	x.mu.Lock()
	x.wakeUpAndUnlock()
}

// wakeUpAndUnlock is wakeUp for a caller that holds x.mu. It releases x.mu.
func (x *session) wakeUpAndUnlock() {
	wake := x.pumps.reading && (x.m.Replays() || x.life.phase() == phaseDraining && x.m.AtRest())
	x.mu.Unlock()
	if wake {
		_ = x.client.SetReadDeadline(aLongTimeAgo)
	}
}

// awaitRoom waits until the server has answered enough that more can be sent to it. It
// reports false if the server will answer nothing more.
func (x *session) awaitRoom() bool {
	if x.downHasEnded() {
		return false
	}
	x.mu.Lock()
	if x.m.HasRoom() {
		x.mu.Unlock()
		return true
	}
	room := x.pumps.wantRoom()
	x.mu.Unlock()
	defer while(&x.active.busy)()
	select {
	case <-room:
	case <-x.downGone:
	}
	return !x.downHasEnded()
}

func (x *session) downHasEnded() bool {
	select {
	case <-x.downGone:
		return true
	default:
		return false
	}
}

// retries is called at the end of the client's input. It reports whether some of that
// input must be sent again first, and waits until it can be.
func (x *session) retries() bool {
	x.mu.Lock()
	repeats := x.m.WillReplay()
	x.mu.Unlock()
	return repeats && x.awaitRoom()
}
