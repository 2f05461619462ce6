package store_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/fencing/store"
)

// TestAnAbortedConnectionSendsNothingMore, whatever is around the socket: an order of which it is not known whether it
// was given is not given later.
func TestAnAbortedConnectionSendsNothingMore(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	conn, err := store.Within(t.Context(), (&net.Dialer{}).DialContext)(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = peer.Close() }()
	if _, err := conn.Write([]byte("order")); err != nil {
		t.Fatal(err)
	}
	store.Abort(tls.Client(conn, &tls.Config{}))
	if got, err := io.ReadAll(peer); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the peer reads %q, and then %v", got, err)
	}
}
