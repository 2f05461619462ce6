// Command bench compares Fencepost with PgBouncer, with HAProxy, with no proxy, and with a fence that
// an application makes itself. The rounds of all contenders are interleaved, so that what else happens
// on the machine affects all of them. It prints medians and ratios. With -write, it keeps all rounds in
// docs/benchmarks.csv in the place of older ones of the same cells, and writes docs/benchmarks.md and its
// picture from that file.
//
//	go run ./scripts/bench -quick
//	go run ./scripts/bench -loads "update select" -clients "8 32" -rounds 5 -seconds 6
//	go run ./scripts/bench -write -loads "idle idle-tls"
//	go run ./scripts/bench -program before=old/fencepost,after=bin/fencepost -only "before fenced,after fenced"
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// program is a build of Fencepost that contends under a name.
type program struct{ name, path string }

// mainProgram is the name of the build that is compared with others' programs.
const mainProgram = "fenced"

// plan is what is measured.
type plan struct {
	rounds      int
	duration    time.Duration // of one run; a bulk load is repeated until it is over
	clients     []int
	loads       []string
	modes       []string
	only        []string // names of contenders; none are all
	programs    []program
	size        int // of a COPY, in MB
	connections int // that are idle
	write       bool
	page        bool // measure nothing
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p, err := parseArgs(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// names splits a list with commas, which the names of contenders do not contain.
func names(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// parseArgs reads the command line.
func parseArgs(args []string) (*plan, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "three minutes: two rounds of single reads and writes with 8 and 32 clients, and of small bulk loads")
	rounds := flags.Int("rounds", 3, "how often everything is run")
	seconds := flags.Int("seconds", 3, "how long one run takes")
	clients := flags.String("clients", "1 8 32 128", "numbers of connections")
	loads := flags.String("loads", loadNames(" "), "what is run, by name")
	modes := flags.String("modes", "simple prepared", "pgbench's query modes")
	only := flags.String("only", "", "contenders, by name, with commas between several (default: all)")
	programs := flags.String("program", "bin/fencepost", "`path` of fencepost, or name=path, with commas between several")
	size := flags.Int("size", 1000, "how much copy-out and copy-in copy, in `MB`")
	connections := flags.Int("connections", 5000, "how many connections are idle")
	write := flags.Bool("write", false, "replace what was measured in docs/benchmarks.csv, and write docs/benchmarks.md, its figures and its picture")
	page := flags.Bool("page", false, "measure nothing, and write the pages and the picture from docs/benchmarks.csv")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	p := &plan{
		rounds: *rounds, duration: time.Duration(*seconds) * time.Second, loads: strings.Fields(*loads), modes: strings.Fields(*modes),
		only: names(*only), size: *size, connections: *connections, write: *write, page: *page,
	}
	if *quick {
		p.rounds, p.duration, p.size = 2, 2*time.Second, 200
		*clients, p.loads = "8 32", []string{"select", "update", "copy-out", "copy-in", "rows"}
		p.only = []string{"pgbouncer", "unfenced", "fenced"}
	}
	for _, n := range strings.Fields(*clients) {
		count, err := strconv.Atoi(n)
		if err != nil || count < 1 {
			return nil, fmt.Errorf("-clients has %q: give positive numbers with spaces between them", n)
		}
		p.clients = append(p.clients, count)
	}
	for one := range strings.SplitSeq(*programs, ",") {
		name, path, named := strings.Cut(one, "=")
		if !named {
			name, path = mainProgram, one
		}
		p.programs = append(p.programs, program{name, path})
	}
	return p, p.valid()
}

// valid returns an error if the plan cannot be measured.
func (p *plan) valid() error {
	if p.rounds < 1 || p.duration < time.Second || p.size < 1 || p.connections < 1 || len(p.clients) == 0 || len(p.loads) == 0 || len(p.modes) == 0 {
		return errors.New("give at least one round, second, MB, connection, number of clients, load and mode")
	}
	for _, name := range p.loads {
		l := loadNamed(name)
		if l == nil {
			return fmt.Errorf("-loads has %q: there are %s", name, loadNames(", "))
		}
		if len(l.cells(p)) == 0 {
			return fmt.Errorf("%s runs in none of these modes with none of these numbers of clients", name)
		}
	}
	if p.write && (len(p.only) > 0 || len(p.programs) > 1 || p.programs[0].name != mainProgram) {
		return errors.New("-write needs all contenders, which are compared in the same rounds, and one program: leave out -only, -quick and names of programs")
	}
	return nil
}

func run(ctx context.Context, p *plan) error {
	if p.page {
		return write(&results{})
	}
	from, err := newOrigin(ctx, p)
	if err != nil {
		return err
	}
	s, err := startServers(ctx, p)
	if err != nil {
		return err
	}
	defer s.stop()
	from.machine += ", PostgreSQL " + s.version
	all, err := measure(ctx, p, s, from)
	fmt.Print("\n", all.tables())
	if p.write {
		err = errors.Join(err, write(all))
	}
	return err
}

// measure runs each cell in rounds, in which the contenders take turns. The cells that were measured before an
// error are results as well.
func measure(ctx context.Context, p *plan, s *servers, from origin) (*results, error) {
	all := &results{}
	for _, name := range p.loads {
		for _, c := range loadNamed(name).cells(p) {
			c.from = from
			for range p.rounds {
				if err := c.round(ctx, p, s); err != nil {
					return all, err
				}
			}
			all.cells = append(all.cells, c)
			fmt.Println(c.line())
		}
	}
	return all, nil
}

// round runs a cell once with each contender.
func (c *cell) round(ctx context.Context, p *plan, s *servers) error {
	for _, by := range s.contenders {
		if !c.load.suits(by) {
			continue
		}
		one, err := c.load.run(ctx, s, p, by, c)
		if err != nil {
			return fmt.Errorf("%s through %s: %w", c.name(), by.name, err)
		}
		c.add(by.name, one)
	}
	return nil
}
