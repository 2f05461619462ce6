package differential

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/proxy"
)

// shadowed is how many random scripts TestAShadowSendsWhatTheClientSends runs.
const shadowed = 30

// TestAShadowSendsWhatTheClientSends: what the server gets from a worker in shadow, who does not
// lead, is byte for byte what it gets from a connection with unfenced: allow.
func TestAShadowSendsWhatTheClientSends(t *testing.T) {
	t.Parallel()
	_, scripts := keptScripts(t)
	for n := range uint64(shadowed) {
		scripts[fmt.Sprintf("seed %d", n)] = generate(n)
	}
	long := strings.Repeat(" ", 3<<10) // texts that are analyzed before they are sent
	scripts["long texts"] = script{steps: []step{
		query("begin" + long), waitReady, query("select 1;" + long + "commit"), waitReady,
		{"Parse", []word{quoted(""), quoted("commit" + long)}}, {"Bind", []word{quoted(""), quoted("")}}, {"Execute", []word{quoted(""), bare("0")}}, syncStep, waitReady,
		{"Parse", []word{quoted("a"), quoted("deallocate" + long + " all")}}, {"Bind", []word{quoted(""), quoted("a")}}, {"Execute", []word{quoted(""), bare("0")}}, syncStep, waitReady,
	}}
	eachMajor(t, func(t *testing.T, major int) {
		h := newCluster(t, major)
		audit := &fixture.Recorder{}
		plain := newTapped(t, h, proxy.SessionPolicy{Unfenced: proxy.UnfencedAllow}, audit)
		shadow := newTapped(t, h, proxy.SessionPolicy{Shadow: true}, audit)
		for name, s := range scripts {
			want := plain.sent(t, s)
			got := shadow.sent(t, s, "options", "-c fencepost.resource=r -c fencepost.worker=w")
			if !bytes.Equal(want, got) {
				t.Errorf("%s: under unfenced: allow the server gets\n%q\nand in shadow\n%q\n%s", name, want, got, s)
			}
		}
		if len(audit.All()) == 0 {
			t.Error("nothing of the scripts would be refused")
		}
	})
}

// tapped is a database behind a proxy whose connections with the server are recorded.
type tapped struct {
	*database
	address string
	relay   *fixture.Relay

	mu    sync.Mutex
	conns []*bytes.Buffer // what the proxy has sent over each connection
}

func newTapped(t *testing.T, h *cluster, policy proxy.SessionPolicy, audit fencing.Auditor) *tapped {
	t.Helper()
	p := &tapped{database: newDatabase(t, h, fenced)}
	p.relay = fixture.NewRelay(t, "unix", socketOf(h.PG), func() fixture.Passing {
		sent := &bytes.Buffer{}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.conns = append(p.conns, sent)
		return fixture.Passing{ToServer: func(b []byte) []byte {
			p.mu.Lock()
			defer p.mu.Unlock()
			sent.Write(b)
			return b
		}}
	})
	p.address = h.Beside(t, "tapped", func(cfg *proxy.Config) {
		fixture.WithPolicy(policy)(cfg)
		cfg.Upstream, cfg.Auditors = fixture.At(t, p.relay.Addr, nil), []fencing.Auditor{audit}
	}).Addr
	return p
}

// sent runs a script, and returns what the server got after the startup.
func (p *tapped) sent(t *testing.T, s script, more ...string) []byte {
	t.Helper()
	want, err := p.direct(s)
	if err == nil {
		err = p.tidy()
	}
	if err != nil {
		t.Fatal(err)
	}
	p.heard = nil
	_, err = p.outcome(run(target{
		network: "tcp", address: p.address, params: append(p.params(), more...),
		like: want.seen, asleep: p.asleep, sleeps: p.sleeps, beside: p.do, witness: p.witness,
	}, s))
	if err == nil {
		err = p.tidy()
	}
	if err != nil {
		t.Fatal(err)
	}
	return p.take()
}

// take waits for the end of all connections, and returns what was sent over the first that was
// not to cancel another, after its startup.
func (p *tapped) take() []byte {
	p.relay.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	conns := p.conns
	p.conns = nil
	for _, b := range conns {
		if b.Len() < 8 {
			continue
		}
		all := b.Bytes()
		if n := int(binary.BigEndian.Uint32(all)); binary.BigEndian.Uint32(all[4:]) != 80877102 {
			return all[n:]
		}
	}
	return nil
}
