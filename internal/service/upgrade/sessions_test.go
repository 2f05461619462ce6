package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// takesSessions is how the roles of new processes begin that take sessions, as their states say.
const takesSessions = "takes sessions"

// arrival is a session that says to its client what becomes of it, and sends it what comes from its server.
type arrival struct {
	state          string
	client, server net.Conn
}

// begun is the state of the session that has begun last.
var begun string

func (a arrival) Begin() {
	if before := begun; a.state == "waits for the next one" && before != "begins" && before != a.state {
		a.state = "too early"
	}
	begun = a.state
	_, _ = fmt.Fprintf(a.client, "begun: %s, ", a.state)
	go func() { _, _ = io.Copy(a.client, a.server) }()
}

func (a arrival) Drop() {
	_, _ = fmt.Fprint(a.client, "dropped")
	_, _ = a.client.Close(), a.server.Close()
}

// takeAs returns how a process of that role takes sessions.
func takeAs(role string) Take {
	return func(state []byte, client, server net.Conn) (Arrival, error) {
		switch string(state) {
		case "bad":
			_, _ = client.Close(), server.Close()
			return nil, errors.New("for this reason")
		case "deadly":
			os.Exit(3)
		case "stalling":
			time.Sleep(2 * passPatience)
		}
		return arrival{string(state), client, server}, nil
	}
}

// serving begins a new process that takes sessions, up to the point where it serves.
func serving(t *testing.T) *Successor {
	t.Helper()
	next, _, _ := begin(t, takesSessions)
	t.Cleanup(next.Leave)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if r, err := next.Report(ctx); err != nil || len(r.Taken) != 1 {
		t.Fatalf("it reports %+v, %v", r, err)
	}
	if err := next.Serve(patience); err != nil {
		t.Fatal(err)
	}
	return next
}

// pass passes one session.
func pass(next *Successor, state string, e ends) error {
	err := next.Offer(context.Background(), []byte(state), e.ours[0], e.ours[1])
	if err == nil {
		err = next.Commit()
	}
	return err
}

// says fails the test unless the client gets this next.
func (e ends) says(t *testing.T, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(e.client, got); err != nil || string(got) != want {
		t.Errorf("the client got %.50q, %v, want %.50q", got, err, want)
	}
}

// ends are a session's ends that its client and its server have, and those of the proxy.
type ends struct {
	client, server *os.File
	ours           [2]int
}

func session(t *testing.T) ends {
	t.Helper()
	var e ends
	for i, theirs := range []**os.File{&e.client, &e.server} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
		if err := unix.SetNonblock(fds[1], true); err != nil {
			t.Fatal(err)
		}
		e.ours[i], *theirs = fds[0], os.NewFile(uintptr(fds[1]), "end")
		if err := (*theirs).SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		f := *theirs
		t.Cleanup(func() { _ = f.Close() })
	}
	return e
}

func (e ends) close() { _, _ = unix.Close(e.ours[0]), unix.Close(e.ours[1]) }

// TestSessionsArePassed, with what has arrived of them and is unread. The new process serves them after the old one has closed its
// descriptors, and those that it refuses are untouched.
func TestSessionsArePassed(t *testing.T) {
	next := serving(t)
	for i, state := range []string{"one", "bad", strings.Repeat("long", 10000), "bad", strings.Repeat("x", maxPassed+1), ""} {
		e := session(t)
		if _, err := io.WriteString(e.server, "unread"); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"bad": "for this reason", strings.Repeat("x", maxPassed+1): fmt.Sprintf("the state of the session is %d bytes long", maxPassed+1)}[state]
		switch err := pass(next, state, e); {
		case want == "" && err != nil, want != "" && (err == nil || err.Error() != want):
			t.Errorf("session %d: %v, want %q", i, err, want)
		case want != "":
			if _, err := unix.Write(e.ours[0], []byte("still here")); err != nil {
				t.Error(err)
			}
			want = "still here"
		default:
			want = "begun: " + state + ", unread"
		}
		e.close()
		e.says(t, want)
		_ = e.server.Close()
	}
}

// TestSessionsArePassedTogether: none is served before the commit, and then the last one begins first. Those that are taken back are
// dropped.
func TestSessionsArePassedTogether(t *testing.T) {
	next := serving(t)
	offer := func(state string) ends {
		t.Helper()
		e := session(t)
		t.Cleanup(e.close)
		if err := next.Offer(t.Context(), []byte(state), e.ours[0], e.ours[1]); (err == nil) != (state != "bad") {
			t.Errorf("%s: %v", state, err)
		}
		return e
	}
	for range 2 {
		taken, alsoTaken := offer("taken back"), offer("taken back")
		offer("bad")
		next.Drop()
		taken.says(t, "dropped")
		alsoTaken.says(t, "dropped")
		first, second, third := offer("waits for the next one"), offer("waits for the next one"), offer("begins")
		offer("bad")
		if err := next.Commit(); err != nil {
			t.Fatal(err)
		}
		third.says(t, "begun: begins, ")
		second.says(t, "begun: waits for the next one, ")
		first.says(t, "begun: waits for the next one, ")
	}
	left := offer("left")
	next.Leave()
	left.says(t, "dropped")
}

// TestAnOfferEndsWithItsContext: the time is limited in which the lease of a leader is not renewed.
func TestAnOfferEndsWithItsContext(t *testing.T) {
	next := serving(t)
	e := session(t)
	defer e.close()
	ctx, cancel := context.WithTimeout(t.Context(), passPatience/10)
	defer cancel()
	began := time.Now()
	if err := next.Offer(ctx, []byte("stalling"), e.ours[0], e.ours[1]); err == nil || time.Since(began) >= passPatience {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	e.says(t, "dropped")
}

// TestTheOldProcessCommitsTooLate: the new one drops what it has accepted, so that whoever is frozen keeps nobody from leading, and
// the old one learns that it has it still.
func TestTheOldProcessCommitsTooLate(t *testing.T) {
	next := serving(t)
	e := session(t)
	defer e.close()
	if err := next.Offer(t.Context(), []byte("left alone"), e.ours[0], e.ours[1]); err != nil {
		t.Fatal(err)
	}
	e.says(t, "dropped")
	if err := next.Commit(); err == nil {
		t.Error("the commit of a session that was dropped succeeds")
	}
}

// TestTheNewProcessDiesOverASession: the old one knows which sessions it has still, and passes no more, for the reason that
// it had first.
func TestTheNewProcessDiesOverASession(t *testing.T) {
	for _, deadly := range []string{"deadly", "stalling"} {
		t.Run(deadly, func(t *testing.T) {
			next := serving(t)
			var first error
			for i, state := range []string{"one", "two", deadly, "four"} {
				e := session(t)
				began := time.Now()
				err := pass(next, state, e)
				if (err == nil) != (i < 2) {
					t.Errorf("session %s: %v", state, err)
				}
				if first == nil {
					first = err
				} else if err == nil || err.Error() != first.Error() {
					t.Errorf("session %s is not passed for another reason: %v, and before: %v", state, err, first)
				}
				if took := time.Since(began); state == "four" && took > passPatience {
					t.Errorf("session four took %s", took)
				}
				want := "begun: " + state + ", "
				if err != nil {
					if _, err := unix.Write(e.ours[0], []byte("still here")); err != nil {
						t.Error(err)
					}
					want = "still here"
				}
				e.says(t, want)
				if state == "stalling" { // which the new process drops when it sees that it comes too late
					e.says(t, "dropped")
				}
				e.close()
			}
		})
	}
}

// TestAnotherVersionPassesNoSessions: the new process finds no socket of the name that it knows, and the old one learns that at once.
func TestAnotherVersionPassesNoSessions(t *testing.T) {
	next, _, _ := begin(t, takesSessions+" of another version")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := next.Report(ctx); err != nil {
		t.Fatal(err)
	}
	if err := next.Serve(patience); err != nil {
		t.Fatal(err)
	}
	e := session(t)
	defer e.close()
	if err := pass(next, "", e); err == nil {
		t.Error("a session was passed")
	}
}
