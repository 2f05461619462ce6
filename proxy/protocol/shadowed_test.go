package protocol_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/shadow"
)

// TestAShadowIsRelayed: what its client sends passes as it is, however it is cut, and what is found does not depend on
// that. A ReadyForQuery counts when it answers everything.
func TestAShadowIsRelayed(t *testing.T) {
	t.Parallel()
	status := func() *fencing.Status { return follower }
	first := bytes.Join([][]byte{
		wiretest.Parse("statement", "delete from a"), wiretest.Close('S', "another"), wiretest.Bind("portal", "statement", strings.Repeat("x", 100)),
		wiretest.Execute("portal", 0), wiretest.Sync(), wiretest.Query("delete from b"), wiretest.Query("begin; select 1 / 0"),
		wiretest.Query("copy c from stdin"),
	}, nil)
	// The block has failed, so that nothing is copied.
	second := wiretest.Query("delete from d")
	third := wiretest.Query("rollback; delete from e")
	for _, chunk := range []int{1, 7, 1 << 20} {
		cache := sqltext.NewCache(1 << 20)
		c := core{t, protocol.New(protocol.Config{
			Mode: protocol.ModePassing, Version: 18, Cache: cache, Candidacy: protocol.Candidacy{Resource: "r", Status: status}, Worker: "w",
			Shadow: shadow.New(shadow.Config{
				Resource: "r", Worker: "w", Version: 18, Cache: cache, Status: status,
				Trouble: func() *fencing.Trouble { return nil }, Campaign: func() {},
			}),
		})}
		ready := func(status byte) { c.server(ready(status)) }
		var found []string
		send := func(b []byte) {
			var sent, held []byte
			for rest := b; len(rest) > 0; {
				n := min(chunk, len(rest))
				held = append(held, rest[:n]...)
				rest = rest[n:]
				out, n, _, err := c.client(held)
				if err != nil {
					t.Fatal(err)
				}
				sent, held = append(sent, out...), held[n:]
			}
			if !bytes.Equal(sent, b) {
				t.Errorf("in pieces of %d bytes, the server gets %q, want %q", chunk, sent, b)
			}
			for _, r := range c.s.Shadowed() {
				found = append(found, r.Statement)
			}
		}
		send(first)
		ready('I')
		ready('I') // the block is under way
		send(wiretest.Query("delete from f"))
		ready('E')
		ready('E')
		ready('E')
		send(second)
		ready('E')
		send(third)
		if want := []string{"delete from a", "delete from b", "copy c from stdin", "rollback; delete from e"}; !slices.Equal(found, want) {
			t.Errorf("in pieces of %d bytes, %q is found, want %q", chunk, found, want)
		}
	}
}
