package upgrade

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/internal/faults"
)

// patience bounds every wait.
const patience = time.Minute

// role is the environment variable that says how a new process behaves: this program is its own successor.
const role = "UPGRADE_TEST_ROLE"

func TestMain(m *testing.M) {
	if _, replaces := os.LookupEnv(variable); replaces {
		if err := beSuccessor(os.Getenv(role)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func beSuccessor(role string) error {
	if role == "dies" {
		os.Exit(3)
	}
	if role == takesSessions+" of another version" {
		_ = os.Setenv(variable, strings.ReplaceAll(os.Getenv(variable), sessionsSocket, "sessions, version 0"))
	}
	p, err := Inherited()
	if err != nil {
		return err
	}
	if again, err := Inherited(); again != nil || err != nil {
		return fmt.Errorf("what this process starts would be a successor too: %v", err)
	}
	if role == "fails" {
		p.Failed(errors.New("for this reason"))
		select {} // until it is ended
	}
	switch role {
	case "silent":
		select {}
	case "no Fencepost":
		p.talk.close()
		select {}
	case "another version":
		p.taken = []int{99}
		return p.Report(context.Background(), nil)
	}
	f := p.Take("b")
	if f == nil || p.Take("b") != nil || p.Take("c") != nil {
		return errors.New("a socket is missing, or is there twice")
	}
	ln, err := net.FileListener(f)
	if err != nil {
		return err
	}
	if err := p.Report(context.Background(), []faults.Active{{Where: strings.Join(p.Databases, " ")}}); err != nil {
		return err
	}
	if err := p.Serving(takeAs(role)); err != nil {
		return err
	}
	if strings.HasPrefix(role, takesSessions) {
		<-p.Ended()
		p.Close()
		return nil
	}
	p.Failed(errors.New("too late to be said"))
	conn, err := ln.Accept()
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintf(conn, "%d\n", os.Getpid()); err != nil {
		return err
	}
	p.Cancel(context.Background(), 7, []byte("secret"))
	_, err = fmt.Fprint(conn, "canceled")
	p.Cancel(context.Background(), 8, nil) // which the old process answers by ending
	<-p.Ended()
	p.Close()
	return errors.Join(err, conn.Close())
}

// begin starts a new process that behaves so, with two sockets.
func begin(t *testing.T, behaves string) (next *Successor, a, b net.Listener) {
	t.Helper()
	t.Setenv(role, behaves)
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		return ln
	}
	a, b = listen(), listen()
	next, err := Start([]Socket{{"a", a}, {"b", b}}, Offer{Databases: []string{"shop", "mail"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = next.End() })
	return next, a, b
}

func TestANewProcessServes(t *testing.T) {
	next, a, b := begin(t, "serves")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := next.Report(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Taken) != 1 || r.Taken[0] != 1 || len(r.Faults) != 1 || r.Faults[0].Where != "shop mail" {
		t.Errorf("it reports %+v", r)
	}
	if err := next.Serve(patience); err != nil {
		t.Fatal(err)
	}
	_ = b.Close()
	conn, err := net.Dial("tcp", b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	if said, err := in.ReadString('\n'); err != nil || said != fmt.Sprintln(next.PID) {
		t.Errorf("the socket is served by %s, %v; want process %d", said, err, next.PID)
	}
	asked, deliver, followed := make(chan string), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(followed)
		next.Follow(func(pid uint32, secret []byte) {
			asked <- fmt.Sprintf("%d %s", pid, secret)
			<-deliver
		})
	}()
	if key := <-asked; key != "7 secret" {
		t.Errorf("the cancel request has the key %s", key)
	}
	if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if said, err := in.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("before the request was delivered, the new process says %q, %v", said, err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	close(deliver)
	if key := <-asked; key != "8 " {
		t.Errorf("the second cancel request has the key %s", key)
	}
	next.Leave()
	<-followed
	if said, err := io.ReadAll(in); err != nil || string(said) != "canceled" {
		t.Errorf("at last, the new process says %s, %v", said, err)
	}
	_ = a.Close()
	if conn, err := net.Dial("tcp", a.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("a socket that nobody has taken is still there")
	}
}

// TestANewProcessFails: the old one knows why, or that it has ended, and goes on with its sockets, which no other process has put into
// blocking mode.
func TestANewProcessFails(t *testing.T) {
	for behaves, want := range map[string]string{"fails": "for this reason", "dies": "it ended: exit status 3", "no Fencepost": "it has closed its pipes, and goes on: it is not Fencepost", "another version": errVersion.Error()} {
		t.Run(behaves, func(t *testing.T) {
			next, a, _ := begin(t, behaves)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := next.Report(ctx); err == nil || err.Error() != want {
				t.Errorf("the reason is %v, want %s", err, want)
			}
			if err := next.End(); err != nil {
				t.Error(err)
			}
			raw, err := a.(syscall.Conn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			flags, failed := 0, error(nil)
			if err := raw.Control(func(fd uintptr) { flags, failed = unix.FcntlInt(fd, unix.F_GETFL, 0) }); err != nil || failed != nil {
				t.Fatal(err, failed)
			}
			if flags&unix.O_NONBLOCK == 0 {
				t.Error("a socket of this process blocks")
			}
		})
	}
}

// TestANewProcessIsLate: the old one gives up with its context, and ends it.
func TestANewProcessIsLate(t *testing.T) {
	next, _, _ := begin(t, "silent")
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("late")
	cancel(late)
	if _, err := next.Report(ctx); !errors.Is(err, late) {
		t.Errorf("the error is %v", err)
	}
	if err := next.End(); err != nil {
		t.Error(err)
	}
}

// TestAnOldProcessThatIsFrozen reads no cancel requests, of which anybody may send any number: they wait for their own time only.
func TestAnOldProcessThatIsFrozen(t *testing.T) {
	in, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	unread, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Close()
	defer theirs.Close()
	p := &Predecessor{talk: newChannel(in, out), ended: make(chan struct{})}
	p.mu.cancels = map[uint64]chan struct{}{}
	if err := p.Serving(nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 1 << 16 { // much more than a pipe holds
		p.Cancel(ctx, 1, make([]byte, 32))
	}
	p.Close()
}

// TestThisProcessReplacesNone: it was started by nobody who says so, or by somebody who only seems to.
func TestThisProcessReplacesNone(t *testing.T) {
	if p, err := Inherited(); p != nil || err != nil {
		t.Errorf("without the variable: %v, %v", p, err)
	}
	var none *Predecessor
	none.Failed(errors.New("nobody is told"))
	if none.Take("a") != nil {
		t.Error("a socket was inherited from nobody")
	}
	t.Setenv(variable, "no JSON")
	if _, err := Inherited(); err == nil || !strings.Contains(err.Error(), "unset it") {
		t.Errorf("with a variable that somebody else has set: %v", err)
	}
}
