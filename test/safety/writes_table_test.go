package safety

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

var (
	cellsTime = flag.Duration("cells", 0, "run cells of the whole table of writes in random order for that long, in place of the fixed part")
	cellsSeed = flag.Uint64("cells-seed", 0, "the seed of that order; 0: one of this run's own")
	cellsLike = flag.String("cells-like", "", "of the whole table, run only cells whose names match that regular expression")
	oneCell   = flag.String("cell", "", "run that cell of the table of writes alone")
)

// cell is one place of the table of writes: who sends which write, how it is
// sent, how its text is written, and the version of the server.
type cell struct {
	server    string // default, or a major version
	who       standingOf
	transport string
	text      string
	path      writePath
}

// String names the cell, as the flag -cell takes it.
func (c cell) String() string {
	return strings.Join([]string{c.server, c.who.String(), c.transport, c.text, c.path.name}, "/")
}

// cellOf finds the cell of that name.
func cellOf(name string) (cell, error) {
	parts := strings.SplitN(name, "/", 5)
	if len(parts) != 5 {
		return cell{}, fmt.Errorf("%q is no cell: want version/who/transport/text/way to write", name)
	}
	c := cell{server: parts[0], transport: parts[2], text: parts[3]}
	who := slices.IndexFunc(standingsOf, func(w standingOf) bool { return w.String() == parts[1] })
	at := slices.IndexFunc(tablePaths(), func(p writePath) bool { return p.name == parts[4] })
	if who < 0 || at < 0 || !slices.Contains(tableServers, c.server) || !slices.Contains(transports, c.transport) || !slices.Contains(textKinds, c.text) {
		return cell{}, fmt.Errorf("%q is no cell: one of its parts is unknown", name)
	}
	c.who, c.path = standingsOf[who], tablePaths()[at]
	return c, nil
}

// possible reports whether there is such a cell: the server knows the way to
// write, and a fast path call has no text and no extended form.
func (c cell) possible(major int) bool {
	if c.path.since > major {
		return false
	}
	return c.path.call == nil || c.text == plainText && slices.Contains(callTransports, c.transport)
}

// tablePaths are the ways to write of the table: those that are compared
// elsewhere, and some that Postgres refuses where nobody has begun a block.
func tablePaths() []writePath {
	return append(writePaths(),
		path("cursor outside a block", "declare k cursor for select wr('w')").but(how{fails: true}),
		path("cursor with a sequence's domain outside a block", "declare k cursor for select '{1}'::sd[]").but(how{fails: true}),
		path("cursor with hold of a domain", "declare k cursor with hold for select '{w}'::wd[]"),
		path("lock table outside a block", "lock table t in access exclusive mode").but(how{fails: true, unseen: true}),
		path("lock table in access exclusive mode", "lock table t in access exclusive mode").but(how{block: true, unseen: true}),
		path("a sequence's domain", "select '{1}'::sd[]"),
	)
}

// TestSafetyTableOfWrites runs cells of the table of writes, on the default
// server and on 18. Whoever may not write changes nothing, holds no lock of a
// writer, and does not hinder a grant; a leader changes what the same messages
// change without a proxy, and is told the same.
//
// By default it runs a fixed part in which each value of a dimension meets each
// value of every other. -cells runs the whole table in random order.
func TestSafetyTableOfWrites(t *testing.T) {
	seed := *cellsSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	if *cellsTime > 0 {
		t.Logf("the order is that of -cells-seed %d", seed)
	}
	var single []cell
	if *oneCell != "" {
		c, err := cellOf(*oneCell)
		if err != nil {
			t.Fatal(err)
		}
		single = []cell{c}
	}
	t.Parallel()
	for _, server := range tableServers {
		if single != nil && single[0].server != server {
			continue
		}
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			x := newTable(t, server)
			x.begun = time.Now()
			switch {
			case single != nil:
				x.run(single)
			case *cellsTime > 0:
				x.runWhole(seed)
			default:
				cells := slices.DeleteFunc(fixedCells(), func(c cell) bool { return c.server != server || !c.possible(x.major) })
				x.run(cells)
				x.logSpent(len(cells))
			}
		})
	}
}

// tableServers are the servers of the table: the default one, and PostgreSQL 18.
var tableServers = []string{"default", "18"}

// numberOf is the major version that a server's name says, 0 for the default.
func numberOf(server string) int {
	n, _ := strconv.Atoi(server)
	return n
}

// leaderParts is how many rounds the cells of leaders are shared among: one takes
// ten times as long as others do, since Postgres is asked too.
const leaderParts = 8

// runWhole runs all cells in random order until the time is over, and begins
// again, in another order, when all were run; of those of leaders it runs a
// part in each round.
func (x *table) runWhole(seed uint64) {
	const chunk = 200
	x.begun = time.Now()
	for round := uint64(0); time.Since(x.begun) < *cellsTime; round++ {
		all := x.allCells(int(round % leaderParts))
		if len(all) == 0 {
			x.t.Fatalf("no cell matches %s", *cellsLike)
		}
		random := rand.New(rand.NewPCG(seed, round))
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for part := range slices.Chunk(all, chunk) {
			if x.run(part); time.Since(x.begun) >= *cellsTime || x.gaveUp() {
				break
			}
		}
		x.logSpent(len(all))
		if x.gaveUp() {
			return
		}
	}
}

// gaveUp reports that a failure says it all: without the fence, all fail.
func (x *table) gaveUp() bool { return x.t.Failed() && !fencing.Checking }

// allCells are all the cells of the server, and of those of leaders one part.
func (x *table) allCells(part int) (all []cell) {
	leaders, like := 0, regexp.MustCompile(*cellsLike)
	for _, p := range tablePaths() {
		for _, who := range standingsOf {
			for _, transport := range transports {
				for _, text := range textKinds {
					c := cell{x.server, who, transport, text, p}
					if !c.possible(x.major) || !like.MatchString(c.String()) {
						continue
					}
					if who == leader {
						if leaders++; leaders%leaderParts != part {
							continue
						}
					}
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// run tries cells, those of one standing together, so that connections can be
// used again.
func (x *table) run(cells []cell) {
	slices.SortStableFunc(cells, func(a, b cell) int { return int(a.who) - int(b.who) })
	for _, c := range cells {
		if *cellsTime > 0 && time.Since(x.begun) > *cellsTime {
			break
		}
		begun := time.Now()
		x.runCell(c)
		x.ran[c.who]++
		if x.spent[c.who] += time.Since(begun); x.gaveUp() {
			break
		}
	}
	x.closeAll()
	x.Audit.Forget()
}

// logSpent says how many cells of those there are were run, and how long one
// took.
func (x *table) logSpent(cells int) {
	var all []string
	sum, spent := 0, time.Since(x.begun)
	for who, n := range x.ran {
		if sum += n; n > 0 {
			all = append(all, fmt.Sprintf("%d of %s in %s each", n, standingOf(who), (x.spent[who]/time.Duration(n)).Round(100*time.Microsecond)))
		}
	}
	x.t.Logf("%d cells in %s, %.1f per second, of a table of %d; %d looked at twice: %s",
		sum, spent.Round(time.Second), float64(sum)/spent.Seconds(), cells, x.twice, strings.Join(all, ", "))
}
