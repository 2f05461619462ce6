package connection

import (
	"context"
	"net"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// endingListener is told to stop at the moment when it has accepted a connection.
type endingListener struct {
	net.Listener
	stop context.CancelFunc
}

func (l endingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	l.stop()
	return conn, err
}

// TestAConnectionThatIsAcceptedAtLastIsServed: a listener may be closed, because another process has it too, while a connection is
// accepted, which no one else can serve.
func TestAConnectionThatIsAcceptedAtLastIsServed(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p := fixture.NewProxy(t, pg, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- p.Server.Serve(ctx, endingListener{ln, stop}) }()
	c, _ := wiretest.Connect(t, ln.Addr().String(), "user", pgtest.Superuser, "database", pg.Database(t))
	if err := <-served; err != nil {
		t.Error(err)
	}
	if got := fixture.FirstValue(t, c.Exec("select 7")); got != "7" {
		t.Errorf("the answer is %s", got)
	}
}
