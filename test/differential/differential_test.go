package differential

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/pgtest"
)

var (
	count  = flag.Int("scripts", 0, "how many scripts to run; 0: what fits into an ordinary run of the tests")
	seed   = flag.Uint64("seed", 1, "the seed of the first script; 0: one of this run's own")
	limit  = flag.Duration("limit", 0, "how long to run at most; 0: until all scripts were run")
	words  = flag.Bool("words", true, "fail also for a difference that is only in what a message says")
	majors = flag.String("majors", "15,18", "the major versions of Postgres to compare with")
	keep   = flag.String("keep", "", "a directory for the failing scripts")
	most   = flag.Int("failures", 3, "how many failing scripts to make small before the run ends")
)

// firstSeed returns the seed of the first script.
var firstSeed = sync.OnceValue(func() uint64 {
	if *seed == 0 {
		return rand.Uint64() >> 20
	}
	return *seed
})

// over reports whether a run that began then has reached its time limit.
func over(began time.Time) bool { return *limit > 0 && time.Since(began) > *limit }

func eachMajor(t *testing.T, test func(t *testing.T, major int)) {
	for _, m := range strings.Split(*majors, ",") {
		t.Run("PostgreSQL "+m, func(t *testing.T) {
			t.Parallel()
			test(t, int(number(m)))
		})
	}
}

// standingOf says how the script of a seed is run through the proxy: one in eight with
// guarded tables.
func standingOf(seed uint64) standing {
	if seed%clients == 0 {
		return guarded
	}
	return fenced
}

// keptScripts returns the scripts in testdata, by their names, and these in order.
func keptScripts(t *testing.T) (names []string, scripts map[string]script) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("kept scripts: %v, %v", files, err)
	}
	scripts = map[string]script{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		if scripts[name], err = parseScript(string(text)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		names = append(names, name)
	}
	return names, scripts
}

// TestKeptScripts runs scripts that once failed.
func TestKeptScripts(t *testing.T) {
	t.Parallel()
	names, scripts := keptScripts(t)
	eachMajor(t, func(t *testing.T, major int) {
		h := newCluster(t, major)
		pairs := []*pair{newPair(t, h, fenced), newPair(t, h, guarded)}
		for _, name := range names {
			for _, p := range pairs {
				want, got, diff, err := p.compare(scripts[name])
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if diff != "" {
					t.Errorf("%s, guards %t: %s", name, p.fenced.guards != "", report(scripts[name], want, got, diff))
				}
			}
		}
	})
}

// TestScriptsReadBack checks that a kept script is the one that was run.
func TestScriptsReadBack(t *testing.T) {
	t.Parallel()
	for n := range uint64(300) {
		s := generateAs(n, n%2 == 1)
		again, err := parseScript(s.String())
		if err != nil {
			t.Fatalf("seed %d: %v", n, err)
		}
		if s.String() != again.String() || generateAs(n, n%2 == 1).String() != s.String() {
			t.Fatalf("seed %d: %s became %s", n, s, again)
		}
		for i := range s.steps {
			if !slices.Equal(s.steps[i].bytes(), again.steps[i].bytes()) {
				t.Fatalf("seed %d: %s became %s", n, s.steps[i], again.steps[i])
			}
		}
	}
}

const (
	clients  = 8   // at once: they mostly wait
	ordinary = 120 // scripts in an ordinary run, which runs the same ones every time
)

// TestScripts runs random scripts: always the same ones in an ordinary run, others in
// make fuzz-differential.
func TestScripts(t *testing.T) {
	t.Parallel()
	eachMajor(t, func(t *testing.T, major int) {
		n := *count
		if n == 0 {
			n = ordinary
		}
		fuzz(t, major, firstSeed(), n)
	})
}

// fuzz runs n scripts of the seeds from first on, or as many as the time limit allows.
func fuzz(t *testing.T, major int, first uint64, n int) {
	// Use a separate server: if it crashes, no other test is disturbed.
	h := newClusterAt(t, pgtest.Start(t, pgtest.WithBinaries(pgtest.Binaries(t, major))))
	pairs := map[standing][]*pair{guarded: {newPair(t, h, guarded)}}
	for range clients - 1 {
		pairs[fenced] = append(pairs[fenced], newPair(t, h, fenced))
	}
	began := time.Now()
	var ran, guards, failures atomic.Int64
	var wg sync.WaitGroup
	for as, those := range pairs {
		var next atomic.Int64
		for _, p := range those {
			wg.Go(func() {
				for failures.Load() < int64(*most) && !over(began) {
					at := next.Add(1) - 1
					if at >= int64(n) {
						return
					}
					seed := first + uint64(at)
					if standingOf(seed) != as {
						continue
					}
					if !p.try(t, major, seed) {
						failures.Add(1)
					}
					ran.Add(1)
					if as == guarded {
						guards.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	took := time.Since(began)
	t.Logf("PostgreSQL %d: %d scripts, %d of them with guarded tables, in %v (%.0f per second), seeds from %d on", major, ran.Load(), guards.Load(), took.Round(time.Millisecond),
		float64(ran.Load())/took.Seconds(), first)
	if ran.Load() == 0 {
		t.Error("no script was run")
	}
}

// try runs the script of a seed, and shrinks it if it fails.
func (p *pair) try(t *testing.T, major int, seed uint64) (ok bool) {
	s := generate(seed)
	p.afterCrash(t)
	want, got, diff, err := p.differs(s)
	if (err != nil || diff != "") && p.afterCrash(t) {
		t.Logf("seed %d, or a concurrent one: the server crashed", seed)
		return true
	}
	if err != nil {
		t.Errorf("seed %d: %v\n%s", seed, err, s)
		return false
	}
	if diff == "" {
		return true
	}
	small := shrink(s, func(c script) bool {
		_, _, d, err := p.differs(c)
		return err == nil && d != ""
	})
	if w, g, d, err := p.differs(small); err == nil && d != "" {
		s, want, got, diff = small, w, g, d
	}
	if ok = !*words && inWords(diff); ok {
		t.Logf("seed %d, a difference in wording: %s", seed, report(s, want, got, diff))
	} else {
		t.Errorf("seed %d: %s", seed, report(s, want, got, diff))
	}
	s.about = fmt.Sprintf("seed %d on PostgreSQL %d\n%s\n", seed, major, diff)
	keepScript(t, fmt.Sprintf("found-%d-%d.txt", major, seed), s.String()+"< "+strings.Join(lines(want.all), "\n< ")+"\n")
	return ok
}

// keepScript writes a failing script into the directory of the flag keep, if there is
// one.
func keepScript(t *testing.T, name, text string) {
	t.Helper()
	if *keep == "" {
		return
	}
	path := filepath.Join(*keep, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Error(err)
		return
	}
	t.Logf("kept in %s", path)
}

// inWords reports whether a difference is only in the text of an error or a notice: nothing
// was lost, held back, written or answered differently.
func inWords(diff string) bool {
	types := messageTypes.FindStringSubmatch(diff)
	return types != nil && types[1] == types[2] && !strings.Contains(diff, "ZF0") && !strings.Contains(diff, stuckAt)
}

// messageTypes finds the types of two messages that differ, if they are errors or notices.
var messageTypes = regexp.MustCompile(`^message \d+:\n  Postgres  ((?:Error|Notice)Response \w+) .*\n  Fencepost ((?:Error|Notice)Response \w+) `)

// TestInWords checks which differences fail where wording does not matter.
func TestInWords(t *testing.T) {
	for _, c := range []struct {
		postgres, fencepost string
		want                bool
	}{
		{`ErrorResponse ERROR 25001 "a"`, `ErrorResponse ERROR 25P02 "b"`, true},
		{`NoticeResponse WARNING 25P01 "a"`, `NoticeResponse WARNING 25P01 "b"`, true},
		{`ErrorResponse ERROR 25001 "a"`, `ErrorResponse FATAL 25001 "a"`, false},
		{`ErrorResponse ERROR 25001 "a"`, `ErrorResponse ERROR ZF001 "a"`, false},
		{`ErrorResponse ERROR 25001 "a"`, `CommandComplete GRANT`, false},
		{`ReadyForQuery I`, `ReadyForQuery T`, false},
		{`DataRow "1"`, `DataRow "2"`, false},
	} {
		diff := fmt.Sprintf(saysOtherwise, 3, c.postgres, c.fencepost)
		if got := inWords(diff); got != c.want {
			t.Errorf("%s: %v", diff, got)
		}
	}
}
