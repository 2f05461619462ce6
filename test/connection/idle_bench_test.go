package connection

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/upstream"
)

// idleSessions is how many sessions BenchmarkIdleSessions opens. Each needs four descriptors.
const idleSessions = 2000

// BenchmarkIdleSessions measures what a session holds while its client says nothing: memory that Go's
// allocator has in use, stacks included, and the growth of the process. Both ends of the session are raw descriptors of this
// process, which hold no memory that is counted.
//
//	go test ./test/connection -run '^$' -bench IdleSessions -benchtime 1x
func BenchmarkIdleSessions(b *testing.B) {
	for range b.N {
		idleSessionsOnce(b)
	}
}

func idleSessionsOnce(b *testing.B) {
	postgres := startStub(b)
	defer postgres.close()
	server, address := serveStub(b, postgres.address)
	clients := make([]*os.File, 0, idleSessions)
	for range 100 { // what the first sessions allocate for all
		clients = append(clients, connectIdle(b, address))
	}
	heap, resident := memoryInUse(b)
	for range idleSessions {
		clients = append(clients, connectIdle(b, address))
	}
	heapAfter, residentAfter := memoryInUse(b)
	b.ReportMetric(float64(heapAfter-heap)/idleSessions/1024, "KB/session")
	b.ReportMetric(float64(residentAfter-resident)/idleSessions, "RSS-KB/session")
	b.ReportMetric(0, "ns/op")
	for _, c := range clients {
		_ = c.Close()
	}
	server()
}

// memoryInUse returns the memory of heap and stacks in bytes, and the resident size of the process in KB.
func memoryInUse(b *testing.B) (inUse, resident int64) {
	time.Sleep(200 * time.Millisecond) // whatever the startups have left to do
	debug.FreeOSMemory()
	debug.FreeOSMemory() // the first one ages what pools hold
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip("the size of a process is known on Linux only")
	}
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	resident, err = strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return int64(m.HeapInuse + m.StackInuse), resident
}

// serveStub starts a proxy before the server at this address, whose clients name no resource.
func serveStub(b *testing.B, postgres string) (stop func(), address string) {
	b.Helper()
	servers, err := upstream.One(upstream.Host{Address: postgres})
	if err != nil {
		b.Fatal(err)
	}
	allow := func(fencing.JoinRequest) proxy.SessionPolicy {
		return proxy.SessionPolicy{Unfenced: proxy.UnfencedAllow}
	}
	s, err := proxy.NewServer(proxy.Config{Upstream: servers, Candidates: noCandidates{}, Policy: allow})
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	return func() {
		cancel()
		if err := <-served; err != nil {
			b.Error(err)
		}
		s.Close()
	}, ln.Addr().String()
}

// noCandidates is for sessions without a resource.
type noCandidates struct{ fencing.Candidates }

// connectIdle connects a client, sends one statement and reads the answer.
func connectIdle(b *testing.B, address string) *os.File {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		b.Fatal(err)
	}
	f := rawOf(b, conn)
	startup := "\x00\x03\x00\x00user\x00u\x00\x00"
	write(b, f, binary.BigEndian.AppendUint32(nil, uint32(4+len(startup))), startup)
	readUntilReady(b, f)
	write(b, f, nil, "Q\x00\x00\x00\x0dSELECT 1\x00")
	readUntilReady(b, f)
	return f
}

func write(b *testing.B, f *os.File, head []byte, body string) {
	if _, err := f.Write(append(head, body...)); err != nil {
		b.Fatal(err)
	}
}

// rawOf returns a blocking descriptor in place of conn, so that the runtime keeps nothing for it.
func rawOf(b *testing.B, conn net.Conn) *os.File {
	f, err := conn.(*net.TCPConn).File()
	if err != nil {
		b.Fatal(err)
	}
	f.Fd() // it blocks from now on
	if err := conn.Close(); err != nil {
		b.Fatal(err)
	}
	return f
}

// readUntilReady reads messages up to a ReadyForQuery.
func readUntilReady(b *testing.B, f *os.File) {
	for {
		typ, err := readMessage(f)
		if err != nil {
			b.Fatal(err)
		}
		if typ == 'Z' {
			return
		}
	}
}

func readMessage(f *os.File) (typ byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return 0, err
	}
	_, err = io.CopyN(io.Discard, f, int64(binary.BigEndian.Uint32(head[1:]))-4)
	return head[0], err
}

// stub is a server that speaks just enough of the protocol. One goroutine serves all of its connections: each
// sends its startup packet and one statement, before the next connection is made.
type stub struct {
	ln      net.Listener
	address string
	done    sync.WaitGroup
	conns   []*os.File
}

func startStub(b *testing.B) *stub {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &stub{ln: ln, address: ln.Addr().String()}
	s.done.Go(func() {
		for pid := uint32(1); ; pid++ {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			f := rawOf(b, conn)
			s.conns = append(s.conns, f)
			if err := s.serve(f, pid); err != nil {
				b.Errorf("stub: %v", err)
				return
			}
		}
	})
	return s
}

func (s *stub) serve(f *os.File, pid uint32) error {
	var length [4]byte
	if _, err := io.ReadFull(f, length[:]); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, f, int64(binary.BigEndian.Uint32(length[:]))-4); err != nil {
		return err
	}
	out := []byte("R\x00\x00\x00\x08\x00\x00\x00\x00")
	for _, p := range [][2]string{{"server_version", "15.0"}, {"client_encoding", "UTF8"}, {"standard_conforming_strings", "on"}, {"TimeZone", "Etc/UTC"}, {"DateStyle", "ISO, MDY"}} {
		body := p[0] + "\x00" + p[1] + "\x00"
		out = append(binary.BigEndian.AppendUint32(append(out, 'S'), uint32(4+len(body))), body...)
	}
	out = binary.BigEndian.AppendUint32(append(out, "K\x00\x00\x00\x0c"...), pid)
	out = append(out, "\x00\x00\x00\x01Z\x00\x00\x00\x05I"...)
	if _, err := f.Write(out); err != nil {
		return err
	}
	if typ, err := readMessage(f); err != nil || typ != 'Q' {
		return fmt.Errorf("%c came, %w", typ, err)
	}
	_, err := f.WriteString("C\x00\x00\x00\x0dSELECT 1\x00Z\x00\x00\x00\x05I")
	return err
}

func (s *stub) close() {
	_ = s.ln.Close()
	s.done.Wait()
	for _, f := range s.conns {
		_ = f.Close()
	}
}
