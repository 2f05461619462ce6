package differential

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/proxy"
)

// shadowed is how many random scripts TestAShadowSendsWhatTheClientSends runs.
const shadowed = 60

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
	tap     *tap
	address string
}

func newTapped(t *testing.T, h *cluster, policy proxy.SessionPolicy, audit fencing.Auditor) *tapped {
	t.Helper()
	p := &tapped{database: newDatabase(t, h, fenced), tap: newTap(t, socketOf(h.pg))}
	_, p.address = fixture.Serve(t, proxy.Config{
		Upstream: fixture.At(t, p.tap.Addr().String(), nil), Candidates: h, ProxyID: "tapped", Auditors: []fencing.Auditor{audit},
		Policy: func(fencing.JoinRequest) proxy.SessionPolicy { return policy },
	})
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
	return p.tap.take()
}

// tap relays connections to a server, and records what each client sends.
type tap struct {
	net.Listener
	server string
	open   sync.WaitGroup

	mu   sync.Mutex
	sent []*bytes.Buffer // of each connection
}

func newTap(t *testing.T, server string) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{Listener: l, server: server}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.relay(c.(*net.TCPConn))
		}
	}()
	return p
}

// relay relays one connection, in the background.
func (p *tap) relay(client *net.TCPConn) {
	conn, err := net.Dial("unix", p.server)
	if err != nil {
		_ = client.Close()
		return
	}
	server, record := conn.(*net.UnixConn), &bytes.Buffer{}
	p.mu.Lock()
	p.sent = append(p.sent, record)
	p.mu.Unlock()
	p.open.Go(func() {
		_, _ = client.ReadFrom(server) // until either side ends
		_ = client.CloseWrite()
	})
	p.open.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			p.mu.Lock()
			record.Write(buf[:n])
			p.mu.Unlock()
			_, _ = server.Write(buf[:n]) // one that has ended reads no more
			if err != nil {
				break
			}
		}
		_ = server.CloseWrite()
	})
}

// take waits for the end of all connections, and returns what was sent over the first that was
// not to cancel another, after its startup.
func (p *tap) take() []byte {
	p.open.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	sent := p.sent
	p.sent = nil
	for _, b := range sent {
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
