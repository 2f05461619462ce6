package auditlog

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/fencing"
)

// TestSummariesComeOnTime, without waiting for it: the time is that of a bubble.
func TestSummariesComeOnTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.InfoLevel)
		l := New(zap.New(core))
		refuse := func(statement string) {
			Recorders{l}.Audit(fencing.Rejection{Time: time.Now(), Kind: fencing.KindNotLeader, SQLState: "ZF002", Worker: "a", Write: true, Statement: statement})
		}
		repeated := func() (all []int64) {
			synctest.Wait()
			for _, e := range logged.TakeAll() {
				n, _ := e.ContextMap()["repeated"].(int64)
				all = append(all, n)
			}
			return all
		}
		expect := func(when string, want ...int64) {
			t.Helper()
			if got := repeated(); len(got) != len(want) || len(got) > 0 && got[0] != want[0] {
				t.Errorf("%s: lines that count %v, want %v", when, got, want)
			}
		}
		refuse("DELETE FROM t WHERE id = 1")
		expect("the first", 0)
		time.Sleep(time.Second / 2) // so that no refusal comes at the moment of a summary
		for range 30 {
			time.Sleep(time.Second)
			refuse("DELETE FROM t WHERE id = 2")
			synctest.Wait()
		}
		if got := repeated(); len(got) != 3 || got[0]+got[1]+got[2] < 28 {
			t.Errorf("in 30 s: lines that count %v", got)
		}
		time.Sleep(Interval)
		expect("after the last refusals", 1)
		time.Sleep(10 * Interval)
		expect("later")
		refuse("DELETE FROM t WHERE id = 3")
		expect("the first again", 0)
		refuse("DELETE FROM t WHERE id = 4")
		l.Close()
		expect("at the end", 1)
		refuse("DELETE FROM t WHERE id = 5")
		expect("after the end", 0)
		time.Sleep(10 * Interval)
		expect("long after the end")
	})
}
