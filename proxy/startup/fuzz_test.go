package startup

import (
	"reflect"
	"strings"
	"testing"
)

// FuzzStartup: what goes to the server names no parameter of Fencepost's, and
// reading it again changes nothing.
func FuzzStartup(f *testing.F) {
	for _, params := range [][]string{
		{"user", "ann"}, {"user", "ann", "options", `-c fencepost.resource=a\ b -c work_mem=5MB --fencepost.worker=w`},
		{"user", "ann", "fencepost.resource", "r", "_pq_.x", "1"}, {"user", "", "database", ""}, {"user", "a", "replication", "f"},
		{"user", "ann", "options", `-c -c --fencepost.worker_timeout=0 -cfencepost.campaign=off \`},
	} {
		f.Add(startupBody(params...))
	}
	f.Add([]byte("user\x00ann"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := parseStartup(3<<16, body)
		if err != nil {
			return
		}
		if s.User == "" || s.Database == "" {
			t.Fatalf("user %q, database %q", s.User, s.Database)
		}
		for i := 0; i < len(s.Params); i += 2 {
			if strings.HasPrefix(strings.ToLower(s.Params[i]), fencePrefix) {
				t.Fatalf("the server gets %q", s.Params[i])
			}
		}
		again, err := parseStartup(3<<16, startupBody(s.Params...))
		if err != nil {
			t.Fatalf("what goes to the server is refused: %v", err)
		}
		if !reflect.DeepEqual(again.Params, s.Params) || again.Own != (Own{WorkerTimeout: -1}) {
			t.Fatalf("%q became %q and %+v", s.Params, again.Params, again.Own)
		}
	})
}
