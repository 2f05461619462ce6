package service

import (
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestFewDescriptorsAreSaid(t *testing.T) {
	t.Parallel()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	fit := int((limit.Cur - otherDescriptors) / 2)
	for _, c := range []struct{ connections, warnings int }{{fit, 0}, {fit + 1, 1}} {
		core, logs := observer.New(zap.WarnLevel)
		if err := warnOfFewDescriptors(zap.New(core), c.connections); err != nil {
			t.Fatal(err)
		}
		if logs.Len() != c.warnings {
			t.Errorf("%d connections with %d open files: %d warnings, want %d", c.connections, limit.Cur, logs.Len(), c.warnings)
		}
	}
}
