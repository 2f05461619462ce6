package raft

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"
)

const (
	resendPause    = 20 * time.Millisecond
	maxResendPause = 500 * time.Millisecond
)

// steady is Raft's transport, which itself sends entries again that have not arrived. Raft's library waits
// longer and longer after each failure, up to ten seconds, also when the node is back: until then it would
// take no entries, although it hears heartbeats, and the loss of another node would stop all awards.
type steady struct {
	hraft.Transport
	hraft.WithPreVote
	log  *zap.Logger
	ctx  context.Context
	raft atomic.Pointer[hraft.Raft] // nil until it has started
	lost func(to string) bool       // for tests: no entries reach the node of this name; may be nil
}

func newSteady(ctx context.Context, t *hraft.NetworkTransport, cfg Config) *steady {
	return &steady{Transport: t, WithPreVote: t, log: cfg.Logger, ctx: ctx, lost: cfg.loses}
}

// AppendEntries implements raft.Transport. Heartbeats are sent once.
func (s *steady) AppendEntries(id hraft.ServerID, target hraft.ServerAddress, args *hraft.AppendEntriesRequest, resp *hraft.AppendEntriesResponse) error {
	if isHeartbeat(args) {
		return s.Transport.AppendEntries(id, target, args, resp)
	}
	pause := resendPause
	for {
		err := errCut
		if s.lost == nil || !s.lost(named(id).Name) {
			err = s.Transport.AppendEntries(id, target, args, resp)
		}
		if err == nil || !s.useful(id, args.Term) {
			return err
		}
		if pause == resendPause {
			s.log.Warn("entries of raft do not reach another node yet", zap.String("node", named(id).Name), zap.Error(err))
		}
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
			return err
		}
		pause = min(2*pause, maxResendPause)
	}
}

// useful reports whether what this node sends as the leader of a term means anything to a node.
func (s *steady) useful(to hraft.ServerID, term uint64) bool {
	r := s.raft.Load()
	if r == nil || r.State() != hraft.Leader || r.CurrentTerm() != term {
		return false
	}
	f := r.GetConfiguration() // which waits for nothing
	return f.Error() == nil && slices.ContainsFunc(f.Configuration().Servers, func(m hraft.Server) bool { return m.ID == to })
}

// isHeartbeat tells heartbeats as Raft's library does.
func isHeartbeat(r *hraft.AppendEntriesRequest) bool {
	return r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}
