package electiontest

import (
	"errors"
	"net"
	"sync/atomic"
)

// window is the end of what was sent since a trap was set, because a text may arrive in
// pieces.
type window struct {
	since *trap
	bytes []byte
}

// pipe is one connection through a link. Clients send one request at a time, so what
// the service sends after a request is its response.
type pipe struct {
	link      *Link
	near, far net.Conn
	sprung    atomic.Pointer[trap] // for the next response
	holds     atomic.Bool          // a request that must arrive although its sender may be gone
	held      atomic.Pointer[trap] // the request that is held back, or was
	mute      atomic.Bool          // nothing passes that the service sends
}

// requests copies what the client sends.
func (p *pipe) requests() {
	defer p.link.wg.Done()
	defer p.far.Close()
	defer p.near.Close()
	buf := make([]byte, 64<<10)
	var seen window
	var late *trap
	for {
		n, err := p.near.Read(buf)
		if n > 0 {
			p.link.pass()
			if tr := p.link.spring(&seen, buf[:n]); tr != nil {
				if !p.catch(tr) {
					return
				}
				if !tr.lose && !tr.mute {
					late = tr
				}
			}
			if _, err := p.far.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if late != nil { // the service learns that the client is gone only after it has answered
				p.wait(late.answered)
			}
			return
		}
	}
}

// catch does what is to be done before a request is forwarded. It reports false if the link was
// closed first.
func (p *pipe) catch(tr *trap) bool {
	tr.sender = p.near
	switch {
	case tr.mute:
		p.mute.Store(true)
		close(tr.sprung)
		return true
	case !tr.lose:
		p.holds.Store(true)
		p.held.Store(tr)
		close(tr.sprung)
		if !p.wait(tr.forward) {
			return false
		}
	}
	p.sprung.Store(tr)
	return true
}

// wait reports false if the link was closed first.
func (p *pipe) wait(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-p.link.ended:
		return false
	}
}

// answers copies what the service sends.
func (p *pipe) answers() {
	defer p.link.wg.Done()
	defer p.far.Close()
	defer p.near.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := p.far.Read(buf)
		if n > 0 {
			p.link.pass()
			if tr := p.sprung.Swap(nil); tr != nil {
				close(tr.answered)
				if tr.lose {
					close(tr.sprung)
					return
				}
			}
			if p.mute.Load() {
				continue
			}
			if _, err := p.near.Write(buf[:n]); err != nil && !p.holds.Load() {
				return
			}
		}
		if err != nil {
			if tr := p.held.Load(); tr != nil && !errors.Is(err, net.ErrClosed) {
				close(tr.hungUp)
			}
			return
		}
	}
}
