package protocol

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/machinetest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
)

var record = flag.Bool("record", false, "write the sessions of scripts into the transcripts of package proxy/protocol")

// keptTranscripts is where they are.
const keptTranscripts = "../../proxy/protocol/testdata"

// maxTranscript bounds a transcript, in bytes: long data shows nothing more.
const maxTranscript = 6 << 10

// transcriber records what happens to the machine of one session at a time: the first after
// next. Without -record there is none.
type transcriber struct {
	mu      sync.Mutex
	waits   bool
	session machinetest.Session
	status  func() *fencing.Status
	last    *fencing.Status
	inputs  []machinetest.Input
	sent    []byte // to the server, since the client's first message
	now     *recorded
}

// recorded is one session's observer, which passes all on to another.
type recorded struct {
	proxy.Observer
	r *transcriber
}

func newTranscriber() *transcriber {
	if !*record {
		return nil
	}
	return &transcriber{}
}

// next returns r, which waits for the next session.
func (r *transcriber) next() *transcriber {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits, r.now = true, nil
	return r
}

// observe makes r observe the sessions of a proxy, beside its own observer.
func (r *transcriber) observe(c *proxy.Config) {
	if r == nil {
		return
	}
	elector, observer := c.Candidates.(*fixture.FakeElector), c.Observe
	c.Observe = func(o proxy.Observed) proxy.Observer { return r.beside(elector, o, observer(o)) }
}

// beside returns an observer that records what next observes.
func (r *transcriber) beside(elector *fixture.FakeElector, o proxy.Observed, next proxy.Observer) proxy.Observer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.waits {
		return next
	}
	r.waits = false
	worker, _, _ := strings.Cut(o.Incarnation, "#")
	r.status = elector.Candidacy(o.Database, "r", worker).Status
	r.last = r.status()
	r.inputs, r.sent = nil, nil
	r.session = machinetest.Session{
		Version: o.Version, Fence: o.Fence, Worker: worker, Incarnation: o.Incarnation, Status: *r.last,
		Strings: o.Settings["standard_conforming_strings"], Encoding: o.Settings["client_encoding"],
	}
	r.now = &recorded{next, r}
	return r.now
}

func (s *recorded) Sent(b []byte) error {
	s.r.mu.Lock()
	if s.r.now == s && len(s.r.inputs) > 0 { // before that the proxy prepares its checks
		s.r.sent = append(s.r.sent, b...)
	}
	s.r.mu.Unlock()
	return s.Observer.Sent(b)
}

func (s *recorded) Received(b []byte) {
	s.r.mu.Lock()
	if s.r.now == s && len(s.r.inputs) > 0 {
		s.r.addLocked(machinetest.Server, b)
	}
	s.r.mu.Unlock()
	s.Observer.Received(b)
}

// client records what the client sends.
func (r *transcriber) client(b []byte) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLocked(machinetest.Client, b)
}

func (r *transcriber) addLocked(side machinetest.Side, b []byte) {
	if st := r.status(); st != r.last {
		r.last = st
		r.inputs = append(r.inputs, machinetest.Input{Side: machinetest.Status, Status: *st})
	}
	if n := len(r.inputs); n > 0 && r.inputs[n-1].Side == side {
		r.inputs[n-1].Bytes = append(r.inputs[n-1].Bytes, b...)
		return
	}
	r.inputs = append(r.inputs, machinetest.Input{Side: side, Bytes: bytes.Clone(b)})
}

var notInNames = regexp.MustCompile(`\W+`)

// keep writes the transcript of the session that a script has ended, of which the
// client got all. Where the machine does not say the same again, because it depended on
// the moment or on the catalog, there is none.
func (r *transcriber) keep(t *testing.T, name string, all []wiretest.Message) {
	t.Helper()
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	text, sent, got, err := machinetest.Play(r.session, r.inputs)
	var client []byte
	for _, m := range all {
		client = append(client, wiretest.Msg(m.Type, m.Body)...)
	}
	switch {
	case err != nil:
		t.Logf("no transcript: %v", err)
	case len(text) > maxTranscript:
		t.Logf("no transcript of %d bytes", len(text))
	case !bytes.Equal(sent, machinetest.Placed(r.sent)):
		t.Logf("no transcript: the server got\n%q, the machine says\n%q", machinetest.Placed(r.sent), sent)
	case !bytes.Equal(got, machinetest.Placed(client)) && !bytes.HasPrefix(machinetest.Placed(client), got):
		t.Logf("no transcript: the client got\n%q, the machine says\n%q", client, got)
	default:
		role := map[bool]string{true: "leader", false: "follower"}[r.session.Status.CanWrite()]
		file := fmt.Sprintf("%s_%s_%d.txt", strings.Trim(notInNames.ReplaceAllString(name, "_"), "_"), role, r.session.Version)
		if err := os.WriteFile(filepath.Join(keptTranscripts, file), []byte(text), 0o644); err != nil {
			t.Error(err)
		}
	}
}
