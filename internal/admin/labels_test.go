package admin

import (
	"testing"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
)

// TestLabelsOfNamesThatAreNoUTF8: the name of a database may contain any bytes, and a
// label that is not valid UTF-8 panics.
func TestLabelsOfNamesThatAreNoUTF8(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(m *Metrics){
		"refused write": func(m *Metrics) {
			m.Audit(fencing.Rejection{Database: "caf\xe9", SQLState: "ZF002", Write: true})
		},
		"event": func(m *Metrics) {
			m.Observe(election.Event{Kind: election.EventGranted, Database: "caf\xe9", Resource: "r"})
		},
		"scrape": func(m *Metrics) {
			m.Watch(func() []status.Resource {
				return []status.Resource{{Database: "caf\xe9", Resource: "r"}}
			})
			if _, err := m.registry.Gather(); err != nil {
				t.Error(err)
			}
		},
	} {
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("%s: panic: %v", name, r)
				}
			}()
			do(NewMetrics())
		}()
	}
}
