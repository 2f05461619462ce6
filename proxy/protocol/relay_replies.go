package protocol

import (
	"bytes"
	"fmt"
	"regexp"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// relayReply takes the message of the server's that begins at in[n], or more of one.
func (s *Session) relayReply(in []byte, n int, p *gate.Segments) (taken int, err error) {
	r := &s.relay
	f, ok, err := wire.PeekFrame(in[n:])
	if err != nil || !ok {
		return 0, err
	}
	avail := min(f.Size, len(in)-n)
	if r.own != nil {
		taken, done, err := s.takeOwnReply(r.own, in, n, f, p)
		if done {
			if r.inBatch && r.own.failed {
				r.skipping, r.failed = true, true
			}
			r.own = nil
		}
		return taken, err
	}
	drop := false
	switch f.Type {
	case 'E', 'S', 'Z':
		if avail < f.Size {
			return 0, nil
		}
		if drop, err = s.followReply(f, in[n:n+f.Size], p); err != nil {
			return 0, err
		}
	default:
		if f.Type == 'C' && s.settings.shown.valid {
			tag, _, _ := wire.CString(in[n+wire.HeaderLen : n+avail])
			s.settings.followTag(unsafeString(tag))
		}
		r.answered(f.Type)
	}
	if !drop {
		p.Forward(n, n+avail)
	}
	s.reply = passthrough{f.Size - avail, drop}
	return avail, nil
}

// followReply follows a message of the server's that the session reads. drop says that it does not go to the client.
func (s *Session) followReply(f wire.Frame, msg []byte, p *gate.Segments) (drop bool, err error) {
	r := &s.relay
	body := msg[wire.HeaderLen:]
	switch f.Type {
	case 'E':
		e, ok := wire.DecodeError(body)
		if !ok {
			return false, fmt.Errorf("%w: an error that cannot be read", ErrUnexpectedReply)
		}
		out := s.relayedError(msg, &e)
		if e.Fatal() {
			end := Event{Kind: EventEnded, Err: e, Message: bytes.Clone(msg)}
			if out != nil {
				end.Message = bytes.Clone(out)
			}
			s.emit(end)
			return true, nil
		}
		r.answered('E')
		r.failed = true
		p.Insert(out)
		return out != nil, nil
	case 'S':
		return s.parameter(body), nil
	case 'Z':
		if len(body) != 1 {
			return false, fmt.Errorf("%w: a ReadyForQuery of %d bytes", ErrUnexpectedReply, f.Size)
		}
		s.relayReady(body[0], p)
	}
	return false, nil
}

// relayReady follows ReadyForQuery.
func (s *Session) relayReady(status byte, p *gate.Segments) {
	r := &s.relay
	failed := r.failed
	r.ready()
	r.failed = false
	s.txn = status
	s.countTransaction(status)
	if s.config.Shadow != nil && r.quiet() && !r.inBatch {
		s.config.Shadow.Ready(status)
	}
	if s.config.Mode != ModeFenced {
		return
	}
	if r.shows || r.sets {
		if r.sets && !failed {
			s.startup.epochs.expect(r.epoch)
		} else if r.shows && !failed {
			for _, one := range s.currentChoice().all {
				one.epochs.expect(one.shown)
			}
		}
		r.shows, r.sets = false, false
	}
	if status == 'I' {
		s.endsBySync = false
		if s.settings.shown.inBlock {
			s.settings.shown = shown{}
		}
		s.transactionEnded()
	}
	s.reportChanges(p)
}

// relayedError returns what the client gets in place of an error, nil if it gets the error itself.
func (s *Session) relayedError(msg []byte, e *wire.ServerError) []byte {
	r := &s.relay
	switch {
	case r.refusal != nil && isRefusedWord(e):
		refusal := r.refusal
		r.refusal = nil
		return s.refuse(refusal, e.Severity, r.refused)
	case r.refusal != nil && e.Code == "42601":
		r.refusal = nil
		return s.ownSyntaxError(msg, e, r.refused.Text)
	case s.blockError != nil && e.Code == "25P02":
		out := s.blockError
		s.blockError = nil
		return out
	case s.config.Mode == ModeFenced && isGuardError(e):
		return s.guardError(msg, e)
	default:
		return nil
	}
}

// guardLines matches the lines of the triggers of guarded tables in the context of an error, which come first there.
// The names of functions do not depend on lc_messages. The name of a trigger function has no schema if the control role
// is called fencepost, because "$user" is in search_path. Nothing quoted may precede the name in the first line, or a
// function of the client's could imitate it.
var guardLines = regexp.MustCompile(`^[^\n"]*\bfencepost\.(?:refuse|guard_[0-9]+)\([^\n]*(?:\n|$)(?:[^\n]*\b(?:fencepost\.refuse|(?:fencepost\.)?guard_[0-9]+)[^\n]*(?:\n|$))*`)

// isGuardError reports whether an error comes from the trigger of a guarded table.
func isGuardError(e *wire.ServerError) bool {
	switch e.Code {
	case fencing.StateSuperseded, fencing.StateNotLeader, fencing.StateNoFence:
		return guardLines.MatchString(e.Where)
	default:
		return false
	}
}

// guardError is what the client sees of an error of a trigger. If its writes are left to the guards, it learns
// who leads.
func (s *Session) guardError(msg []byte, e *wire.ServerError) []byte {
	found, ok := fencing.DecodeFinding(e.Detail)
	st := s.startup.Status()
	if ok && found.Resource == s.startup.Resource && e.Code == fencing.StateNotLeader && s.config.Tables {
		r := fencing.GuardedRefusal(e.Message, s.startup.Resource, s.config.Worker, s.startup.Incarnation(), st)
		return s.refuse(r, e.Severity, Attempt{Text: s.relayedText(), Write: true})
	}
	return wire.EditError(nil, msg, func(field byte, v []byte) ([]byte, bool) {
		switch field {
		case 'W':
			v = v[len(guardLines.Find(v)):]
			return v, len(v) > 0
		case 'M':
			return []byte(fencing.Marked(e.Message, e.Code)), true
		default:
			return v, true
		}
	})
}
