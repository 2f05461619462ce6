package electors

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/internal/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRedisIsCalledBestEffortAtTheStart(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.WarnLevel)
	cfg := config.Default()
	cfg.Election.Redis.Address = "127.0.0.1:1"
	s, err := redisElector.Open(cfg, "one", zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	said := false
	for _, line := range logs.All() {
		said = said || strings.Contains(line.Message, "Redis is a best-effort lease service")
	}
	if !said {
		t.Errorf("the log holds %v", logs.All())
	}
	if _, ok := s.(Adviser); !ok {
		t.Error("it has no risks")
	}
}
