package protocol

// phase says whether anything more is sent on in one direction of a session. It begins
// open, and is left once, for good.
type phase struct {
	state phaseState
	err   error // of phaseEnded
}

type phaseState uint8

const (
	phaseOpen  phaseState = iota
	phaseMuted            // the rest is dropped: what was sent last ends the connection
	phaseEnded            // what the peer sent cannot be followed, which ends the session
)

// mute drops whatever comes from now on.
func (p *phase) mute() { p.leave(phaseMuted, nil) }

// end ends the session with an error.
func (p *phase) end(err error) { p.leave(phaseEnded, err) }

func (p *phase) leave(to phaseState, err error) {
	if p.state != phaseOpen {
		panic("protocol: a direction that is over goes on")
	}
	p.state, p.err = to, err
}

// muted reports that whatever comes is dropped.
func (p *phase) muted() bool { return p.state == phaseMuted }
