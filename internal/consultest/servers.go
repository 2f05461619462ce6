package consultest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/stopwatch"
)

// servers is how many servers a cluster of several has.
const servers = 3

// Servers is a cluster of several Consul servers. Clients use an agent that is none of them, as each
// host has one.
type Servers struct {
	*Agent
	servers []*Agent
}

// StartServers returns a cluster for one test. It ends with the test.
func StartServers(t testing.TB) *Servers {
	t.Helper()
	stopwatch.AwaitRoom(t)
	var err error
	for range 3 { // see start
		var s *Servers
		if s, err = startServers(t.TempDir()); err == nil {
			t.Cleanup(s.Stop)
			return s
		}
	}
	t.Fatalf("start Consul: %v", err)
	return nil
}

func startServers(dir string) (*Servers, error) {
	s := &Servers{}
	var all []*Agent
	var join []string
	for i := range servers + 1 {
		a, err := plan(options{ttlMin: "1s"})
		if err != nil {
			return nil, err
		}
		if all = append(all, a); i < servers {
			join = append(join, "-retry-join="+a.ports[2].Address())
		}
	}
	s.servers, s.Agent = all[:servers], all[servers]
	for i, a := range all {
		node := fmt.Sprint("n", i)
		flags := append(slices.Clone(join), "-node="+node, "-data-dir="+filepath.Join(dir, node), "-retry-interval=200ms")
		if a != s.Agent {
			flags = append(flags, "-server", fmt.Sprint("-bootstrap-expect=", servers))
		}
		a.configure(flags...)
		if err := a.Launch(); err != nil {
			s.Stop()
			return nil, err
		}
	}
	for _, a := range all {
		if err := a.await(); err != nil {
			s.Stop()
			return nil, err
		}
	}
	return s, nil
}

// Stop ends the cluster and discards its state. Stopping twice is harmless.
func (s *Servers) Stop() {
	for _, a := range append(slices.Clone(s.servers), s.Agent) {
		a.Stop()
	}
}

// Leader returns the place of the server that leads the cluster.
func (s *Servers) Leader(t testing.TB) int {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var leader string
		answer, err := s.request(http.MethodGet, "/v1/status/leader", nil, patience)
		if err == nil && json.Unmarshal(answer, &leader) == nil {
			if i := slices.IndexFunc(s.servers, func(a *Agent) bool { return a.ports[1].Address() == leader }); i >= 0 {
				return i
			}
		}
	}
	t.Fatal("Consul has no leader")
	return 0
}

// Kill ends a server as a crash does.
func (s *Servers) Kill(i int) { s.servers[i].Kill() }
