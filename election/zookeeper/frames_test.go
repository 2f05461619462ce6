package zookeeper_test

import (
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/zookeeper"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

// greeting is a valid first message of a server.
func greeting() []byte {
	b := binary.BigEndian.AppendUint32(nil, 37)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, 10_000)
	b = binary.BigEndian.AppendUint64(b, 0x1234)
	b = binary.BigEndian.AppendUint32(b, 16)
	return append(b, make([]byte, 17)...)
}

// strangers are what serves where ZooKeeper should: what each sends after the first bytes of a client. The
// connection stays open.
var strangers = map[string]string{
	"an HTTP server":                     "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
	"a greeting and a message too short": string(greeting()) + "\x00\x00\x00\x04none",
	"a greeting and a length too large":  string(greeting()) + "\x7f\xff\xff\xff",
}

// stranger serves what is no ZooKeeper, and returns its address.
func stranger(t *testing.T, says string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			if _, err := conn.Read(make([]byte, 1024)); err == nil {
				_, _ = conn.Write([]byte(says))
			}
		}
	}()
	return l.Addr().String()
}

// TestAStrangerIsLeft for the next server, and named if there is no other.
func TestAStrangerIsLeft(t *testing.T) {
	t.Parallel()
	for name, says := range strangers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 8 * time.Second
			other := stranger(t, says)
			alone := client(t, zookeeper.Config{Servers: []string{other}, TTL: ttl, Proxy: "alone"}).Database("db")
			eventually(t, "the error names the server", patience, func() bool {
				_, err := alone.Acquire(within(t, 3*time.Second), bid("a", ttl))
				return err != nil && strings.Contains(err.Error(), other)
			})
			ensemble := zookeepertest.Shared(t)
			both := client(t, zookeeper.Config{Servers: []string{other, ensemble.Addr()}, TTL: ttl, Proxy: "both", Prefix: strings.ReplaceAll(name, " ", "-")}).Database("db")
			acquire(t, both, bid("a", ttl))
		})
	}
}
