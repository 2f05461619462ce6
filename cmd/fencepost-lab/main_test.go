package main

import (
	"errors"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "a command is missing"},
		{[]string{"serve"}, `unknown command "serve"`},
		{[]string{"demo", "--election", "chubby"}, "postgres, consul, etcd, kubernetes, raft, redis, zookeeper"},
		{[]string{"demo", "now"}, `unexpected argument "now"`},
		{[]string{"demo-worker"}, "--lease is required"},
		{[]string{"playground-worker", "--dsn", "x"}, "--dsn and --resource are required"},
	} {
		var wrong usageError
		if err := run(t.Context(), c.args); !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}
