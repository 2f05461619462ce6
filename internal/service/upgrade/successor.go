package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a listening socket that the new process inherits.
type Socket struct {
	// Name says what the socket is for, so that the new process finds it. Sockets may have the same name.
	Name     string
	Listener net.Listener // must be a syscall.Conn
}

// Successor is the new process, as the old one sees it. One goroutine at a time may use it.
type Successor struct {
	PID      int
	sockets  int // that it inherits
	cmd      *exec.Cmd
	talk     *channel
	sessions *net.UnixConn // see Offer
	broken   error         // why nothing can be said there any more
	ended    chan struct{} // closed when the process has ended
}

// Start starts the program file again, with the arguments and the environment of this process.
func Start(sockets []Socket, offer Offer) (_ *Successor, err error) {
	program, err := exec.LookPath(os.Args[0]) // which may be another file by now, or a link to another one
	if err != nil {
		return nil, fmt.Errorf("find the program: %w", err)
	}
	cmd := exec.Command(program, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	defer func() { // it has its own
		for _, f := range cmd.ExtraFiles {
			_ = f.Close()
		}
	}()
	theirs, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("create a pipe: %w", err)
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, theirs) // fromOld
	in, theirs, err := os.Pipe()
	if err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("create a pipe: %w", err)
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, theirs) // toOld
	s := &Successor{sockets: len(sockets), cmd: cmd, talk: newChannel(in, out), ended: make(chan struct{})}
	defer func() {
		if err != nil {
			s.Leave()
		}
	}()
	names := make([]string, 0, len(sockets)+1)
	for _, socket := range sockets {
		f, err := duplicate(socket.Listener)
		if err != nil {
			return nil, fmt.Errorf("duplicate the socket of %s: %w", socket.Name, err)
		}
		names, cmd.ExtraFiles = append(names, socket.Name), append(cmd.ExtraFiles, f)
	}
	if s.sessions, theirs, err = socketPair(); err != nil {
		return nil, fmt.Errorf("create the socket for sessions: %w", err)
	}
	names, cmd.ExtraFiles = append(names, sessionsSocket), append(cmd.ExtraFiles, theirs)
	text, err := json.Marshal(names)
	if err != nil {
		return nil, fmt.Errorf("write the names of the sockets: %w", err)
	}
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	s.PID = cmd.Process.Pid
	go func() {
		defer close(s.ended)
		_ = cmd.Wait() // ProcessState says how it ended
	}()
	if err := s.talk.send(message{Offer: &offer}); err != nil {
		return nil, errors.Join(s.failure(err), s.End())
	}
	return s, nil
}

// duplicate returns another descriptor of a socket. Unlike File of a listener, it leaves the socket in non-blocking
// mode when the new process is given the descriptor.
func duplicate(l net.Listener) (*os.File, error) {
	conn, ok := l.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, failed := 0, error(nil)
	if err := raw.Control(func(old uintptr) { fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, firstSocket) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("fcntl", failed)
	}
	return os.NewFile(uintptr(fd), "socket"), nil
}

// Report waits until the new process is able to serve. The error says why it is not.
func (s *Successor) Report(ctx context.Context) (Report, error) {
	defer context.AfterFunc(ctx, func() { _ = s.talk.in.SetReadDeadline(time.Unix(1, 0)) })()
	m, err := s.talk.receive()
	switch {
	case ctx.Err() != nil:
		return Report{}, context.Cause(ctx)
	case err != nil:
		return Report{}, s.failure(err)
	case m.Failed != "":
		return Report{}, errors.New(m.Failed)
	case m.Report == nil, slices.ContainsFunc(m.Report.Taken, func(i int) bool { return i < 0 || i > s.sockets }):
		return Report{}, errVersion
	}
	m.Report.Taken = slices.DeleteFunc(m.Report.Taken, func(i int) bool { return i == s.sockets }) // that of Offer
	return *m.Report, nil
}

// Serve lets the new process serve, and returns nil when it does. It waits at most patience.
func (s *Successor) Serve(patience time.Duration) error {
	if err := s.talk.send(message{Serve: true}); err != nil {
		return s.failure(err)
	}
	if err := s.talk.in.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	m, err := s.talk.receive()
	switch {
	case err != nil:
		return s.failure(err)
	case m.Failed != "":
		return errors.New(m.Failed)
	case !m.Serving:
		return errors.New("it has answered something else than that it serves")
	}
	return s.talk.in.SetReadDeadline(time.Time{})
}

// Follow calls deliver, in a goroutine each, with the cancel requests that the new process gets and that may be for
// clients of this one. deliver returns when it has done what it can. Follow returns when the new process has ended,
// which it reports, or after Leave. Call it after Serve.
func (s *Successor) Follow(deliver func(pid uint32, secret []byte)) (ended bool) {
	var delivering sync.WaitGroup
	defer delivering.Wait()
	for {
		m, err := s.talk.receive()
		if err != nil {
			return errors.Is(err, io.EOF)
		}
		if c := m.Cancel; c != nil {
			delivering.Go(func() {
				deliver(c.PID, c.Secret)
				_ = s.talk.send(message{Cancel: &cancel{ID: c.ID}}) // it may have ended
			})
		}
	}
}

// Leave tells the new process that this one has ended, which is about to.
func (s *Successor) Leave() {
	s.talk.close()
	if s.sessions != nil {
		_ = s.sessions.Close()
	}
}

// failure says why the new process could not be talked to.
func (s *Successor) failure(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("talk to it: %w", err)
	}
	select {
	case <-s.ended:
		return fmt.Errorf("it ended: %s", s.cmd.ProcessState)
	case <-time.After(endPatience):
		return errors.New("it has closed its pipes, and goes on: it is not Fencepost")
	}
}

// endPatience is how long a process may take to end after the system has closed its pipes.
const endPatience = time.Second

// End ends a process that is not to take over.
func (s *Successor) End() error {
	s.Leave()
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end it: %w", err)
	}
	<-s.ended
	return nil
}
