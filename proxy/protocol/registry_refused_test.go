package protocol

import (
	"bytes"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/gate"
)

// TestACheckAfterARefusedNoteCannotPass: what the registry has refused goes after a
// check, which says why. The candidacy may lead again between the two, so that a
// check with the epoch held now would pass, and the text go on after a COMMIT.
func TestACheckAfterARefusedNoteCannotPass(t *testing.T) {
	t.Parallel()
	const text = "not one statement; commit; insert into t values (1)"
	for name, message := range map[string][]byte{
		"as a Query": wiretest.Query(text), "as a Parse": wiretest.Parse("", text),
	} {
		st := *standings[0]
		m := fuzzMachine(ModeFenced, &st)
		p := &gate.Plan{}
		p.Reset(message)
		if _, need, err := m.FromClient(message, p); need != NeedRegister || err != nil {
			t.Fatalf("%s: need %v, want the registry", name, need)
		}
		st.Role = fencing.Follower
		if e := m.RegisterRequest(); e.Held != 0 {
			t.Fatalf("%s: without the lease it holds epoch %d", name, e.Held)
		}
		m.Registered(&fencing.Refusal{SQLState: fencing.StateNotLeader})
		st.Role = fencing.Leader
		p.Reset(message)
		if _, need, err := m.FromClient(message, p); need != NeedNothing || err != nil {
			t.Fatalf("%s: need %v after the registry's refusal", name, need)
		}
		sent, _ := p.Bytes(nil)
		passes := fencing.InlineCheckSQL(7, "w", "i", 5, 5)
		refuses := fencing.InlineCheckSQL(7, "w", "i", 5, 0)
		held5 := append([]byte{0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5}, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5)
		held0 := append([]byte{0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5}, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0)
		if bytes.Contains(sent, []byte(passes)) || bytes.Contains(sent, held5) || !bytes.Contains(sent, []byte(refuses)) && !bytes.Contains(sent, held0) && !bytes.Contains(sent, []byte("(5,0)")) {
			t.Errorf("%s: %q goes to the server", name, sent)
		}
	}
}
