package proxy

import (
	"bytes"
	"testing"

	"github.com/fencepost/fencepost/proxy/startup"
	"github.com/fencepost/fencepost/upstream"
)

func TestCancelKeysOfOneProcessID(t *testing.T) {
	t.Parallel()
	var k cancelKeys
	db := upstream.Host{Address: "db:5432"}
	pid, secret := k.add(nil, db, 4711, []byte("old!"))
	other, otherSecret := k.add(nil, db, 4711, []byte("new!"))
	if pid != 4711 || other == 4711 || other == 0 {
		t.Fatalf("keys name processes %d and %d, want 4711 and another one", pid, other)
	}
	request := func(pid uint32, secret []byte) *startup.Cancel {
		return &startup.Cancel{PID: pid, Secret: secret}
	}
	k.remove(pid)
	if _, ok := k.find(request(pid, secret)); ok {
		t.Error("a key that was removed is still valid")
	}
	if got, ok := k.find(request(other, otherSecret)); !ok || got.server != db || got.serverPID != 4711 || string(got.serverSecret) != "new!" {
		t.Errorf("the second session's key leads to %+v, %v", got, ok)
	}
	again, againSecret := k.add(nil, db, 4711, []byte("last"))
	if again != 4711 {
		t.Errorf("a process id that is free again was given as %d", again)
	}
	if _, ok := k.find(request(again, secret)); ok && !bytes.Equal(secret, againSecret) {
		t.Error("an old secret is valid for a new session")
	}
}

func TestCancelSecretsAreAsLongAsTheServers(t *testing.T) {
	t.Parallel()
	var k cancelKeys
	db := upstream.Host{Address: "db:5432"}
	for _, size := range []int{4, 32, 256} {
		theirs := bytes.Repeat([]byte{7}, size)
		pid, secret := k.add(nil, db, 4711, theirs)
		if len(secret) != size || bytes.Equal(secret, theirs) {
			t.Errorf("for a secret of %d bytes the client is given %x", size, secret)
		}
		got, ok := k.find(&startup.Cancel{PID: pid, Secret: secret})
		if !ok || !bytes.Equal(got.serverSecret, theirs) {
			t.Errorf("a secret of %d bytes leads to %+v, %v", size, got, ok)
		}
		for _, wrong := range [][]byte{nil, secret[:3], secret[:size-1], theirs, append(bytes.Clone(secret), 0)} {
			if _, ok := k.find(&startup.Cancel{PID: pid, Secret: wrong}); ok {
				t.Errorf("%x is taken for %x", wrong, secret)
			}
		}
		k.remove(pid)
	}
}
