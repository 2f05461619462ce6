package connection

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestALongErrorEndsTheSession: an error of more than 16 MB, which the proxy would have to read as a whole,
// ends the session with a reason. A row may be that long.
func TestALongErrorEndsTheSession(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), nil)
	conn := fixture.LeaderConn(t, p, p.PG.Database(t))
	const long = 17 << 20
	if v := fixture.FirstValue(t, conn.Exec(fmt.Sprintf("select repeat('x', %d)", long))); len(v) != long {
		t.Errorf("a row of %d bytes came, want %d", len(v), long)
	}
	conn.Send(Q(fmt.Sprintf("do $$begin raise exception '%%', repeat('x', %d); end$$", long)))
	if f := fixture.FatalError(t, conn.Rest()); f['C'] != "54000" || !strings.Contains(f['M'], "more than 16 MB") {
		t.Errorf("the client is told %v, want 54000", f)
	}
}
