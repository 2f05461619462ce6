// Command bench compares Fencepost with PgBouncer, with HAProxy, with no proxy, and with a fence that
// an application makes itself. The rounds of all contenders are interleaved, so that what else happens
// on the machine affects all of them. It prints medians and ratios, and writes them to
// docs/benchmarks.md with a picture if it is told to.
//
//	go run ./scripts/bench -quick
//	go run ./scripts/bench -loads "update select" -clients "8 32" -rounds 5 -seconds 6
//	go run ./scripts/bench -program before=/tmp/old,after=bin/fencepost -only "before fenced,after fenced"
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
	rounds   int
	duration time.Duration // of one run of pgbench
	clients  []int
	loads    []string
	modes    []string
	only     []string // names of contenders; none are all
	programs []program
	write    bool
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
	quick := flags.Bool("quick", false, "three minutes: two rounds of single reads and writes with 8 and 32 clients")
	rounds := flags.Int("rounds", 4, "how often everything is run")
	seconds := flags.Int("seconds", 3, "how long one run takes")
	clients := flags.String("clients", "1 8 32 128", "numbers of connections")
	loads := flags.String("loads", "select update tpcb pipeline reconnect", "what is run, by name")
	modes := flags.String("modes", "simple prepared", "pgbench's query modes")
	only := flags.String("only", "", "contenders, by name, with commas between several (default: all)")
	programs := flags.String("program", "bin/fencepost", "`path` of fencepost, or name=path, with commas between several")
	write := flags.Bool("write", false, "write docs/benchmarks.md and its picture")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	p := &plan{
		rounds: *rounds, duration: time.Duration(*seconds) * time.Second, loads: strings.Fields(*loads), modes: strings.Fields(*modes),
		only: names(*only), write: *write,
	}
	if *quick {
		p.rounds, *clients, p.loads, p.only = 2, "8 32", []string{"select", "update"}, []string{"pgbouncer", "unfenced", "proven", "fenced"}
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
	for _, name := range p.loads {
		if loadNamed(name) == nil {
			return nil, fmt.Errorf("-loads has %q: there are %s", name, loadNames())
		}
	}
	if p.rounds < 1 || p.duration < time.Second || len(p.clients) == 0 || len(p.loads) == 0 || len(p.modes) == 0 {
		return nil, errors.New("give at least one round, second, number of clients, load and mode")
	}
	return p, nil
}

func run(ctx context.Context, p *plan) error {
	s, err := startServers(ctx, p)
	if err != nil {
		return err
	}
	defer s.stop()
	all, err := measure(ctx, p, s)
	if err != nil {
		return err
	}
	fmt.Print("\n", all.table())
	if !p.write {
		return nil
	}
	return all.writePage(s.version, strings.Join(os.Args[1:], " "))
}

// measure runs each cell in rounds, in which the contenders take turns.
func measure(ctx context.Context, p *plan, s *servers) (*results, error) {
	all := &results{plan: p}
	for _, name := range p.loads {
		load := loadNamed(name)
		for _, mode := range load.in(p.modes) {
			for _, clients := range p.clients {
				c := &cell{load: load, mode: mode, clients: clients, runs: map[string][]sample{}}
				all.cells = append(all.cells, c)
				for range p.rounds {
					if err := c.round(ctx, p, s); err != nil {
						return nil, err
					}
				}
				fmt.Println(c.line())
			}
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
		one, err := s.pgbench(ctx, by, c.load, c.mode, c.clients, p.duration)
		if err != nil {
			return fmt.Errorf("%s through %s: %w", c.name(), by.name, err)
		}
		if c.runs[by.name] == nil {
			c.names = append(c.names, by.name)
		}
		c.runs[by.name] = append(c.runs[by.name], one)
	}
	return nil
}
