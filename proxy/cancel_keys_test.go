package proxy

import "testing"

func TestCancelKeysOfOneProcessID(t *testing.T) {
	t.Parallel()
	var k cancelKeys
	pid, secret := k.add(4711, []byte("old!"))
	other, otherSecret := k.add(4711, []byte("new!"))
	if pid != 4711 || other == 4711 || other == 0 {
		t.Fatalf("keys name processes %d and %d, want 4711 and another one", pid, other)
	}
	request := func(pid, secret uint32) *cancelRequest {
		return &cancelRequest{pid: pid, secret: []byte{byte(secret >> 24), byte(secret >> 16), byte(secret >> 8), byte(secret)}}
	}
	k.remove(pid)
	if _, ok := k.find(request(pid, secret)); ok {
		t.Error("a key that was removed is still valid")
	}
	if got, ok := k.find(request(other, otherSecret)); !ok || got.serverPID != 4711 || string(got.serverSecret) != "new!" {
		t.Errorf("the second session's key leads to %+v, %v", got, ok)
	}
	again, againSecret := k.add(4711, []byte("last"))
	if again != 4711 {
		t.Errorf("a process id that is free again was given as %d", again)
	}
	if _, ok := k.find(request(again, secret)); ok && secret != againSecret {
		t.Error("an old secret is valid for a new session")
	}
}
