package raft

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A node whose directory hangs does not keep its proxy from ending with an error that says so.
func TestANodeWhoseDirectoryHangsDoesNotStart(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one")
	c.begin()
	c.stop("one")
	identity := filepath.Join(c.dir, "one", "identity.json")
	if err := errors.Join(os.Remove(identity), syscall.Mkfifo(identity, 0o600)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		client, err := New(c.config("one"))
		if err == nil {
			err = client.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "the node one has not started within") {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(patience):
		t.Error("it still waits")
	}
	f, err := os.OpenFile(identity, os.O_WRONLY, 0) // the reader goes on
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}
