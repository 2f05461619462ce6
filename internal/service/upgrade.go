package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/service/upgrade"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/proxy/unixsocket"
)

const (
	// readyTimeout is how long a new process may take until it is able to serve.
	readyTimeout = time.Minute
	// serveTimeout is how long it may take until it serves after that.
	serveTimeout = 10 * time.Second
)

// The reasons for which no new process takes over.
var (
	errFirstProcess = errors.New("this process is the first of its container, which would end with it: restart the container")
	errRaftNode     = errors.New("this proxy is a node of Raft (election.raft.dir), whose directory and address one process has at a time: restart it, one node after the other")
	errDraining     = errors.New("this process is about to end")
	errUnderWay     = errors.New("a new process is starting already")
)

func isRaftNode(c *config.Config) bool {
	return c.Election.Provider == "raft" && c.Election.Raft.Dir != ""
}

// upgrades starts a new process at each signal, until one has taken over and replaced was called. It ends with asking. The end of ctx
// ends a new process that has not taken over.
func (s *Server) upgrades(ctx, asking context.Context, replaced func()) {
	log := s.log.Named("upgrade")
	var starting chan error
	var following sync.WaitGroup
	defer following.Wait()
	for {
		select {
		case <-s.options.Upgrades:
			err := s.upgradable(ctx)
			if starting != nil {
				err = errUnderWay
			}
			if err != nil {
				log.Error("no new process is started", zap.Error(err))
				continue
			}
			starting = make(chan error, 1)
			go func() { starting <- s.upgrade(ctx, log) }()
		case err := <-starting:
			starting = nil
			switch {
			case err == nil:
				following.Go(s.followSuccessor)
				replaced()
			case ctx.Err() != nil:
				log.Info("the new process does not take over", zap.Error(err))
			default:
				log.Error("the new process does not take over: this one goes on", zap.Error(err))
			}
		case <-asking.Done():
			if starting != nil {
				<-starting // it may have taken over at the last moment
			}
			if next := s.successor.Load(); next != nil {
				next.Leave()
			}
			return
		}
	}
}

// upgradable says why no new process can take over now.
func (s *Server) upgradable(ctx context.Context) error {
	if by := s.successor.Load(); by != nil {
		return fmt.Errorf("process %d has taken over already: send the signal to it", by.PID)
	}
	if before := s.options.Replaces; before != nil {
		select {
		case <-before.Ended():
		default:
			return errors.New("the process before this one has not ended yet: try again after its sessions have ended (shutdown_delay, drain_timeout)")
		}
	}
	switch {
	case os.Getpid() == 1:
		return errFirstProcess
	case isRaftNode(s.current()):
		return errRaftNode
	case ctx.Err() != nil:
		return errDraining
	}
	return nil
}

// upgrade starts a new process, and returns nil when that serves.
func (s *Server) upgrade(ctx context.Context, log *zap.Logger) (err error) {
	sockets := s.sockets()
	next, err := upgrade.Start(sockets, upgrade.Offer{Databases: slices.Collect(maps.Keys(s.fences.all()))})
	if err != nil {
		return err
	}
	log = log.With(zap.Int("pid", next.PID))
	log.Info("a new process has been started")
	defer func() {
		if err != nil {
			err = errors.Join(err, next.End())
		}
	}()
	timed, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("it was not able to serve within %s", readyTimeout))
	defer cancel()
	report, err := next.Report(timed)
	switch {
	case ctx.Err() != nil:
		return errDraining
	case err != nil:
		return err
	}
	if found := newFaults(s.faults.Active(), report.Faults); len(found) > 0 {
		return fmt.Errorf("it has faults that this process does not have: %s", strings.Join(found, "; "))
	}
	var passed []*unixsocket.Listener
	for _, i := range report.Taken { // also if this process is told to end meanwhile
		if local, ok := sockets[i].Listener.(*unixsocket.Listener); ok {
			local.Disown()
			passed = append(passed, local)
		}
	}
	if err := next.Serve(serveTimeout); err != nil {
		for _, local := range passed {
			err = errors.Join(err, local.Own(os.FileMode(s.current().ListenMode)))
		}
		return err
	}
	tellSystemd(s.log, fmt.Sprintf("MAINPID=%d\n%s", next.PID, daemon.SdNotifyReady)) // which listens to the new process from now on
	s.successor.Store(next)
	log.Info("the new process has taken over")
	return nil
}

// followSuccessor delivers the cancel requests of the clients of this process that reach the new one.
func (s *Server) followSuccessor() {
	next := s.successor.Load()
	if next.Follow(func(pid uint32, secret []byte) { s.proxy.Cancel(context.Background(), pid, secret) }) {
		s.log.Named("upgrade").Error("the new process has ended, and this one accepts no connections any more: start Fencepost again", zap.Int("pid", next.PID))
	}
}

// newFaults describes the faults that are not among those that were there before.
func newFaults(before, now []faults.Active) (found []string) {
	for _, f := range now {
		same := func(b faults.Active) bool { return b.Where == f.Where && b.Kind == f.Kind }
		if !slices.ContainsFunc(before, same) {
			found = append(found, strings.TrimSpace(fmt.Sprintf("%s: %s %s", f.Where, f.Problem, f.Remedy)))
		}
	}
	return found
}

// takeOver tests whether this process can serve, and returns when it may do so in place of the one that it replaces.
func (s *Server) takeOver(ctx context.Context) error {
	before := s.options.Replaces
	select {
	case <-s.health.Looked():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for _, database := range before.Databases {
		s.health.Examined(database, s.health.Probe(ctx, database))
	}
	if r := s.readiness(ctx); !r.Ready {
		problems := newFaults(nil, r.Faults)
		if len(problems) == 0 {
			problems = []string{r.Upstream}
		}
		return fmt.Errorf("it is not ready: %s", strings.Join(problems, "; "))
	}
	if err := before.Report(ctx, s.faults.Active()); err != nil {
		return err
	}
	return s.ownSockets()
}

// passOn drains while the sessions that can be are passed on to the new process.
func (s *Server) passOn(ctx context.Context, next *upgrade.Successor) error {
	passed, err := s.proxy.PassOn(ctx, next)
	log := s.log.Named("upgrade").With(zap.Int("pid", next.PID), zap.Int("sessions", passed.Sessions))
	if passed.Ended > 0 {
		log.Warn("not all sessions that may write could be passed on to the new process: the others have ended", zap.Int("ended", passed.Ended), zap.NamedError("error", passed.Why))
	} else if passed.Sessions > 0 {
		log.Info("sessions were passed on to the new process")
	}
	return err
}

// takeSession takes a session that the process before this one passes.
func (s *Server) takeSession(state []byte, client, server net.Conn) (upgrade.Arrival, error) {
	switch conn := client.(type) {
	case *net.TCPConn:
		_ = conn.SetKeepAliveConfig(keepalive) // a connection that has ended already has none
	case *net.UnixConn:
		client = unixsocket.WithPeer(conn)
	}
	arrival, err := s.proxy.TakeOver(state, client, server)
	if err != nil {
		return nil, err
	}
	return arrival, nil
}

// awaitPredecessor logs that the process before this one has ended. It ends with ctx.
func (s *Server) awaitPredecessor(ctx context.Context) {
	defer s.options.Replaces.Close()
	select {
	case <-s.options.Replaces.Ended():
		s.log.Named("upgrade").Info("the process before this one has ended")
	case <-ctx.Done():
	}
}

// startupPatience is how long clients that are connecting may hold up the drain: a leader's pool cannot write until the connections
// that it has at this process have ended.
const startupPatience = time.Second

// awaitStartups returns when no client is in its startup any more, except for those that wait for the lead, when startupPatience has
// passed, or when ctx has ended. Draining would refuse such clients, and none comes any more.
func (s *Server) awaitStartups(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, startupPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for slices.ContainsFunc(s.proxy.Connections(), proxy.Connection.Connecting) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
