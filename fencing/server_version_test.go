package fencing

import "testing"

func TestOldServersAreRefused(t *testing.T) {
	t.Parallel()
	for version, refused := range map[string]bool{
		"14.23 (Debian 14.23-1.pgdg120+1)": true, "9.6.24": true, "15.0": false, "15beta1": false, "18.4": false, "": false, "devel": false,
	} {
		if r := OldServer(ServerMajor(version)); (r != nil) != refused {
			t.Errorf("%q: %v", version, r)
		}
	}
}
