package reload

import (
	"context"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/config"
)

// TestAConfigurationThatIsNeverReadToItsEnd: a reload ends with its context and after a time, changes nothing, and
// does not take what was read for it later for the configuration of another reload.
func TestAConfigurationThatIsNeverReadToItsEnd(t *testing.T) {
	t.Parallel()
	texts := make(chan string)
	reads := make(chan struct{}, 10)
	r := &Reloader{Log: zap.NewNop(), Apply: func(*config.Config) {}, Load: func() (config.Config, error) {
		reads <- struct{}{}
		cfg := config.Default()
		cfg.Log.Level = <-texts
		return cfg, nil
	}}
	r.Start(config.Default())
	before := r.Current().Log.Level

	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan Result)
	go func() { over <- r.Reload(ctx) }()
	<-reads
	cancel()
	if result := <-over; len(result.Errors) != 1 || r.Current().Log.Level != before {
		t.Errorf("the reload ended with %+v", result)
	}
	if result := r.Reload(t.Context()); len(result.Errors) != 1 || !strings.Contains(result.Errors[0], "could not be read to its end within 5s") {
		t.Errorf("the second reload ended with %+v", result)
	}
	if len(reads) != 0 {
		t.Error("the configuration was read again while it was being read")
	}
	go func() { over <- r.Reload(t.Context()) }()
	texts <- "error"
	texts <- "warn"
	if result := <-over; len(result.Errors) != 0 || r.Current().Log.Level != "warn" {
		t.Errorf("the third reload ended with %+v, and the level %s", result, r.Current().Log.Level)
	}
	if len(reads) != 1 {
		t.Errorf("the configuration was read %d times for the third reload, want once", len(reads))
	}
}
