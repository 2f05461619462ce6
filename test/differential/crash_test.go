package differential

import (
	"testing"
	"time"
)

// afterCrash reports whether the server has crashed since the databases of p were made, and makes
// them anew then. Random scripts crash the server itself occasionally, without Fencepost: 18 by a
// Query that begins or ends blocks behind messages that were executed without a Sync, and any
// version by the Execute of a portal of a failed block, after a Parse of its statement's name (seed
// 11144872924170 on 15). A crash ends the connections of all scripts that run at that time.
func (p *pair) afterCrash(t *testing.T) bool {
	t.Helper()
	for until := time.Now().Add(3 * patience); ; { // all databases are made anew at once
		crashes, err := p.plain.cluster.PG.Crashes()
		if err != nil {
			t.Error(err)
			return false
		}
		if crashes == p.crashes {
			return false
		}
		if err = p.remake(); err == nil {
			p.crashes = crashes // another crash since is found by the next call
			return true
		}
		if time.Now().After(until) {
			t.Errorf("the server has crashed, and its databases cannot be made anew: %v", err)
			return true
		}
	}
}

// remake connects to the databases again and makes them anew.
func (p *pair) remake() error {
	for _, r := range []*database{p.plain, p.fenced} {
		if err := r.reopen(); err != nil {
			return err
		}
		if err := r.rebuild(); err != nil {
			return err
		}
	}
	return nil
}
