package safety

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// speaker is a connection that runs steps as a client that knows the protocol.
type speaker struct {
	*wiretest.Conn
	epoch    int64 // under which it was opened
	all      []wiretest.Message
	skipping bool // the server skips all up to a Sync
	copying  bool // it awaits COPY data
	ended    bool
	err      error // no answer came
}

// send sends each step when the one before was answered.
func (s *speaker) send(steps []sending) {
	for _, x := range steps {
		if s.ended || s.err != nil {
			return
		}
		if x.data && !s.copying {
			continue
		}
		if s.skipping && x.ready > 0 && x.send[0] != 'S' {
			s.say(ask1(Sync()))
		}
		s.say(x)
	}
}

func (s *speaker) say(x sending) {
	_, _ = s.Write(x.send) // an end is seen by what is read
	if x.ready > 0 {
		s.skipping = false
	}
	for n := x.ready; !s.ended && s.err == nil && (n > 0 || x.upTo != "" && !s.skipping); {
		m, err := s.Next()
		switch {
		case errors.Is(err, io.EOF):
			s.ended = true
			return
		case err != nil:
			s.err = fmt.Errorf("no answer: %w", err)
			return
		}
		s.all = append(s.all, m)
		s.copying = m.Type == 'G'
		switch {
		case m.Type == 'Z':
			n--
		case x.upTo != "" && m.Type == 'E':
			s.skipping = true
		case x.upTo != "" && strings.IndexByte(x.upTo, m.Type) >= 0:
			return
		}
	}
}
