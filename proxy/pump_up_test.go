package proxy

import (
	"io"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/netlooptest"
	"github.com/fencepost/fencepost/proxy/startup"
)

// waitingPump returns an up pump without a machine, and the other ends of its session's connections.
func waitingPump(t *testing.T) (u *upPump, client, server io.ReadWriter) {
	near, client := netlooptest.Pair(t)
	below, server := netlooptest.Pair(t)
	return &upPump{x: newSession(&Server{}, near, below, &startup.Request{})}, client, server
}

// TestWhatArrivedDuringAWaitMayBeFromItsBeginning: what the client sends while the pump waits for something else may
// have been decided before its worker was granted an epoch in the meantime.
func TestWhatArrivedDuringAWaitMayBeFromItsBeginning(t *testing.T) {
	t.Parallel()
	u, client, _ := waitingPump(t)
	began := u.startWaiting()
	if _, err := client.Write([]byte("sent during the wait")); err != nil {
		t.Fatal(err)
	}
	awaitUnread(t, u)
	u.compact()
	if at := u.startWaiting(); at != began {
		t.Errorf("it counts as sent %v after the wait began", at.Sub(began))
	}
	n, err := u.x.client.Read(u.in.room())
	u.in.have += n
	if err != nil {
		t.Fatal(err)
	}
	u.off = n
	u.compact()
	if at := u.startWaiting(); at == began {
		t.Error("what comes after all has been read counts as sent when the wait began")
	}
}

// TestAWriteThatBlocksIsAWait: the server reads only after the client has sent more.
func TestAWriteThatBlocksIsAWait(t *testing.T) {
	t.Parallel()
	u, _, server := waitingPump(t)
	const size = 32 << 20 // more than the sockets take
	u.step.out = make([]byte, size)
	began, done := time.Now(), make(chan error, 1)
	go func() { done <- u.toServer() }()
	if _, err := io.CopyN(io.Discard, server, size); err != nil {
		t.Fatal(err)
	}
	ended := time.Now()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if u.waiting.Before(began) || u.waiting.After(ended) {
		t.Errorf("the wait began at %v, want a time between %v and %v", u.waiting, began, ended)
	}
}

// TestWhatWasReadIsAsOldAsTheRead: what the machine makes of it, and whether the pump waits then, is known later.
func TestWhatWasReadIsAsOldAsTheRead(t *testing.T) {
	t.Parallel()
	u, client, _ := waitingPump(t)
	if _, err := client.Write([]byte("sent")); err != nil {
		t.Fatal(err)
	}
	awaitUnread(t, u)
	u.x.mu.Lock() // Serve reads, and leaves the rest to the pump
	defer u.x.mu.Unlock()
	began := time.Now()
	if u.Serve() {
		t.Fatal("Serve has finished")
	}
	ended := time.Now()
	time.Sleep(time.Millisecond) // what is measured
	if at := u.startWaiting(); at.Before(began) || at.After(ended) {
		t.Errorf("it counts as read at %v, want a time between %v and %v", at, began, ended)
	}
	u.off = u.in.have
	u.compact()
	if at := u.startWaiting(); !at.After(ended) {
		t.Errorf("what comes later counts as read at %v, and Serve ended at %v", at, ended)
	}
}

// TestAnAnnouncementIsAWait: the client does not read what announces an epoch to it, and sends more.
func TestAnAnnouncementIsAWait(t *testing.T) {
	t.Parallel()
	u, client, _ := waitingPump(t)
	a, done := newAnnouncement(), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		u.answer(a, true)
	}()
	if !<-a.quiet {
		t.Fatal("bytes are pending")
	}
	if _, err := client.Write([]byte("sent")); err != nil {
		t.Fatal(err)
	}
	awaitUnread(t, u)
	time.Sleep(2 * briefWait) // what is measured
	sent := time.Now()
	close(a.sent)
	<-done
	if at := u.startWaiting(); at.Before(began) || !at.Before(sent) {
		t.Errorf("it counts as sent at %v, want a time between %v and %v", at, began, sent)
	}
}

// awaitUnread returns when bytes of the client have arrived.
func awaitUnread(t *testing.T, u *upPump) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); u.x.client.Unread() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("nothing arrives")
		}
		time.Sleep(time.Millisecond)
	}
}
