package several

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

// chooser returns a connection of worker w, whose own resource is r, and which has not named any
// other. The worker leads these.
func chooser(c *fixture.Cluster, leads ...string) *wiretest.Conn {
	c.T.Helper()
	return chooserAs(c, "w", leads...)
}

// another returns a name that no worker has had.
func another(c *fixture.Cluster) string { return fmt.Sprintf("w%d", c.Elector.Next()) }

// chooserAs is chooser for another worker than w.
func chooserAs(c *fixture.Cluster, worker string, leads ...string) *wiretest.Conn {
	c.T.Helper()
	for _, resource := range leads {
		c.GrantOn(resource, worker)
	}
	return c.Connect(worker)
}

// show returns what a parameter of Fencepost's shows.
func show(t *testing.T, c *wiretest.Conn, name string) string {
	t.Helper()
	return fixture.FirstValue(t, fixture.MustPass(t, c, wiretest.Query("show fencepost."+name)))
}

// parameters are the values of ParameterStatus messages about Fencepost, as "name=value".
func parameters(all []wiretest.Message) string {
	var words []string
	for _, m := range all {
		if name, value, _ := strings.Cut(string(m.Body), "\x00"); m.Type == 'S' && strings.HasPrefix(name, "fencepost.") {
			words = append(words, strings.TrimPrefix(name, "fencepost.")+"="+strings.TrimRight(value, "\x00"))
		}
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// write is a row of table t with the value v.
func write(v string) string { return "insert into t (v) values ('" + v + "')" }
