package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/internal/faults"
)

// Predecessor is the old process, as the new one sees it. Except for Ended and Cancel, one goroutine at a time may use
// it.
type Predecessor struct {
	Offer
	talk    *channel
	names   []string   // of the sockets
	sockets []*os.File // nil if taken
	taken   []int
	passes  *net.UnixConn // the sessions; nil if it passes none
	over    bool          // it has served, or failed
	ended   chan struct{}

	mu struct {
		sync.Mutex
		last    uint64
		cancels map[uint64]chan struct{} // closed when the old process has delivered that request
	}
}

// errVersion means that the two processes do not understand each other.
var errVersion = errors.New("it speaks another version of this protocol: restart the service")

// Inherited returns the process that this one was started to replace, nil if there is none. It must be called once,
// before anything reads the environment.
func Inherited() (*Predecessor, error) {
	text, replaces := os.LookupEnv(variable)
	if !replaces {
		return nil, nil
	}
	if err := os.Unsetenv(variable); err != nil {
		return nil, fmt.Errorf("unset %s: %w", variable, err)
	}
	p := &Predecessor{ended: make(chan struct{})}
	p.mu.cancels = map[uint64]chan struct{}{}
	if err := json.Unmarshal([]byte(text), &p.names); err != nil {
		return nil, fmt.Errorf("the variable %s, which only Fencepost itself sets, is %q: unset it", variable, text)
	}
	in, err := inherit(fromOld)
	if err != nil {
		return nil, err
	}
	out, err := inherit(toOld)
	if err != nil {
		return nil, err
	}
	p.talk = newChannel(in, out)
	for i := range p.names {
		f, err := inherit(firstSocket + i)
		if err != nil {
			return nil, err
		}
		p.sockets = append(p.sockets, f)
	}
	m, err := p.talk.receive()
	if err == nil && m.Offer == nil {
		err = errVersion
	}
	if err != nil {
		return nil, fmt.Errorf("talk to the process that started this one: %w", err)
	}
	p.Offer = *m.Offer
	if f := p.Take(sessionsSocket); f != nil {
		p.passes, err = unixConn(f)
	}
	return p, err
}

// inherit returns an inherited descriptor. The processes that this one starts do not inherit it.
func inherit(fd int) (*os.File, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("the variable %s, which only Fencepost itself sets, is set, and descriptor %d is missing: unset it", variable, fd)
	}
	return os.NewFile(uintptr(fd), "inherited"), nil
}

// Take returns a socket of that name, which the caller closes, nil if there is no such socket or all were taken. p may
// be nil.
func (p *Predecessor) Take(name string) *os.File {
	if p == nil {
		return nil
	}
	for i, f := range p.sockets {
		if f != nil && p.names[i] == name {
			p.sockets[i], p.taken = nil, append(p.taken, i)
			return f
		}
	}
	return nil
}

// Report says that this process is able to serve, and which faults it has found, closes the sockets that nobody has
// taken, and returns when it may serve.
func (p *Predecessor) Report(ctx context.Context, found []faults.Active) error {
	for _, f := range p.sockets {
		if f != nil {
			_ = f.Close()
		}
	}
	if err := p.talk.send(message{Report: &Report{Taken: p.taken, Faults: found}}); err != nil {
		return fmt.Errorf("talk to the process that is to be replaced: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = p.talk.in.SetReadDeadline(time.Unix(1, 0)) })()
	m, err := p.talk.receive()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF), err == nil && !m.Serve:
		return errors.New("the process that was to be replaced goes on, or has ended")
	case err != nil:
		return fmt.Errorf("talk to the process that is to be replaced: %w", err)
	}
	return nil
}

// Serving says that this process serves. The old one accepts no more connections from then on, and passes sessions to
// take.
func (p *Predecessor) Serving(take Take) error {
	p.over = true
	var receiving sync.WaitGroup
	if p.passes != nil {
		receiving.Go(func() { receive(p.passes, take) })
	}
	go func() {
		defer close(p.ended)
		defer receiving.Wait() // the last one may have come just before the old process ended
		for {
			m, err := p.talk.receive()
			if err != nil {
				return
			}
			if m.Cancel != nil {
				p.delivered(m.Cancel.ID)
			}
		}
	}()
	if err := p.talk.send(message{Serving: true}); err != nil {
		return fmt.Errorf("talk to the process that is to be replaced: %w", err)
	}
	return nil
}

// Cancel passes a cancel request on to the old process, and returns when that has delivered it, has ended, or does not
// know it. It does nothing if p is nil. Call it after Serving.
func (p *Predecessor) Cancel(ctx context.Context, pid uint32, secret []byte) {
	if p == nil {
		return
	}
	done := make(chan struct{})
	p.mu.Lock()
	p.mu.last++
	id := p.mu.last
	p.mu.cancels[id] = done
	p.mu.Unlock()
	defer p.delivered(id)
	if err := p.talk.send(message{Cancel: &cancel{ID: id, PID: pid, Secret: secret}}); err != nil {
		return // it has ended
	}
	select {
	case <-done:
	case <-p.ended:
	case <-ctx.Done():
	}
}

// delivered ends the wait of a Cancel.
func (p *Predecessor) delivered(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if done, waits := p.mu.cancels[id]; waits {
		close(done)
		delete(p.mu.cancels, id)
	}
}

// Ended is closed when the old process has ended, after Serving.
func (p *Predecessor) Ended() <-chan struct{} { return p.ended }

// Close ends what Serving has begun. It is called when this process serves no more.
func (p *Predecessor) Close() {
	p.talk.close()
	if p.passes != nil {
		_ = p.passes.Close()
	}
	<-p.ended
}

// Failed says why this process cannot take over. It does nothing after Serving, and if p or err is nil.
func (p *Predecessor) Failed(err error) {
	if p == nil || err == nil || p.over {
		return
	}
	p.over = true
	_ = p.talk.send(message{Failed: err.Error()}) // the old process notices otherwise that this one ends
	p.talk.close()
}
