package protocol

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestAnnouncedInATransaction: what was announced counts from the next transaction on,
// also where that has begun with the end of the last one.
func TestAnnouncedInATransaction(t *testing.T) {
	t.Parallel()
	var a announced
	want := func(epoch fencing.Epoch, when string) {
		t.Helper()
		if a.inHand.announced != epoch {
			t.Errorf("%s: epoch %d counts, want %d", when, a.inHand.announced, epoch)
		}
	}
	a.begins()
	a.expect(5)
	a.settle()
	want(0, "announced in a transaction")
	a.endsIn(1)
	first := a.inHand
	want(5, "after a COMMIT that was sent")
	a.mayGoOn(1)
	want(5, "after a ROLLBACK TO in the same batch, which runs only if the COMMIT has run")
	a.mayGoOn(2)
	want(0, "after a ROLLBACK TO in the next batch")
	if !a.confirm(first) || a.confirm(first) {
		t.Error("the COMMIT is confirmed, and it is not confirmed once")
	}
	want(5, "after the COMMIT has run")
	a.mayGoOn(3)
	want(5, "after a ROLLBACK TO in the next transaction")
	old := a.inHand
	a.endsIn(3)
	a.unsure()
	a.mayGoOn(3)
	if a.inHand != old {
		t.Error("a COMMIT of which it is unsure that it has run began a transaction")
	}
	a.endsIn(3)
	second := a.inHand
	a.confirm(second)
	if a.confirm(old) || a.inHand != second {
		t.Error("an earlier transaction is in hand again")
	}
}

// TestPortalsEndWithTheirTransaction: a session that is never at rest keeps none of the
// portals of transactions that are over.
func TestPortalsEndWithTheirTransaction(t *testing.T) {
	t.Parallel()
	m := fuzzMachine(ModeReadOnly, unknownStatus)
	pumpUp(t, m, wiretest.Query("begin"), 1<<20)
	pumpDown(t, m, append(wiretest.Msg('C', []byte("BEGIN\x00")), wiretest.Msg('Z', []byte("T"))...), 1<<20)
	const each = 10
	for round := range 20 {
		var in, out []byte
		in = append(in, wiretest.Parse("", "show work_mem")...)
		out = append(out, wiretest.Msg('1')...)
		for i := range each {
			in = append(in, wiretest.Bind(fmt.Sprint("portal", round*each+i), "")...)
			out = append(out, wiretest.Msg('2')...)
		}
		in = append(append(in, wiretest.Parse("", "commit and chain")...), wiretest.Bind("c", "")...)
		in = append(append(in, wiretest.Execute("c", 0)...), wiretest.Sync()...)
		out = append(append(out, wiretest.Msg('1')...), wiretest.Msg('2')...)
		out = append(append(out, wiretest.Msg('C', []byte("COMMIT\x00"))...), wiretest.Msg('Z', []byte("T"))...)
		pumpUp(t, m, in, 1<<20)
		answerOurs(t, m)
		if got, _ := pumpDown(t, m, out, 1<<20); !bytes.Equal(got, out) {
			t.Fatalf("the client gets %q of %q", got, out)
		}
		if n := len(m.names.portals.byName); n != 0 {
			t.Fatalf("%d portals are kept after %d transactions", n, round+1)
		}
	}
}

// TestAPortalSurvivesAnEarlierEnd: a ROLLBACK that was sent before a Bind is answered after
// it, and in between stands an Execute that may have revived the transaction. The portal
// that the Bind makes is not of the transaction that the ROLLBACK has ended.
func TestAPortalSurvivesAnEarlierEnd(t *testing.T) {
	t.Parallel()
	m := fuzzMachine(ModeFenced, standings[0])
	pumpUp(t, m, bytes.Join([][]byte{
		wiretest.Query("rollback"), wiretest.Parse("s", "show work_mem"), wiretest.Execute("", 0), wiretest.Sync(),
		wiretest.Parse("", "declare c cursor for select 1"), wiretest.Bind("", ""),
	}, nil), 1<<20)
	out := bytes.Join([][]byte{wiretest.Msg('C', []byte("ROLLBACK\x00")), wiretest.Msg('Z', []byte("I"))}, nil)
	if _, taken := pumpDown(t, m, out, 1<<20); taken != len(out) {
		t.Fatalf("the machine takes %d bytes of %q", taken, out)
	}
	if s := m.names.portals.get(nil).stmt; s == nil || !s.requiresBlock() {
		t.Errorf("the portal holds %+v, want the DECLARE", s)
	}
}
