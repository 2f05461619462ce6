package protocol

import "testing"

// TestOnlyWhatWasAskedForIsOwed, however entries leave the FIFO.
func TestOnlyWhatWasAskedForIsOwed(t *testing.T) {
	t.Parallel()
	var m Machine
	owes := func(want bool, when string) {
		t.Helper()
		if m.Owes() != want {
			t.Errorf("%s: owes is %v", when, !want)
		}
	}
	owes(false, "at rest")
	m.pendingReplies.push(parse, fromClient)
	m.pendingReplies.push(bind, fromClient)
	owes(false, "without Sync or Flush")
	m.pendingReplies.ask()
	owes(true, "after a Flush")
	m.pendingReplies.push(execute, fromClient)
	m.pendingReplies.remove(2)
	m.pendingReplies.pop()
	owes(true, "when one of two was answered")
	m.pendingReplies.push(execute, fromClient)
	m.pendingReplies.pop()
	owes(false, "when what was asked for was answered")
	m.pendingReplies.push(function, fromClient)
	m.up.body.begin(7, false)
	owes(false, "in the middle of a fast path call")
	m.up.body.take(7)
	owes(true, "when it is whole")
	m.pendingReplies.pop()
	m.pendingReplies.pop()
	m.pendingReplies.push(copyEnd, fromClient)
	m.pendingReplies.ask()
	owes(false, "after an end of COPY that nothing answers")
	m.pendingReplies.push(query, fromClient)
	m.pendingReplies.remove(0)
	owes(true, "after a Query")
	m.copy.begin(false)
	owes(false, "when it wants COPY data")
}
