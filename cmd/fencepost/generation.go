package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/token"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/service/hosts"
	"github.com/fencepost/fencepost/internal/table"
)

const generationAbout = `
Usage: fencepost generation bump [--config FILE] [--database NAME [--at HOST]]
                                 [--above EPOCH [--yes] | --restored [--yes] | --tokens]

The operator's way back after the lease service, or the database, was restored
from an older state or rebuilt. Run it when all workers of the lost epochs
have stopped, and when you are sure that this is the state to go on with.

It begins a new generation at the configured lease service: awards made from now
on count as newer than all that the fence table has recorded. With the elector
postgres the generation is per database, so --database is needed.

If the database itself was restored, its epochs may have fallen. Then give
--database and --above: the epoch of every resource that is not above that one is
raised above it, and whoever holds such an epoch is superseded. A resource that is
above it already keeps its epoch and its leader. Resources that the restore has lost
begin above that epoch when they are created again. The error ZF004 names the epoch
to give; --restored is for when nobody knows it, raises every resource and skips far
ahead. All leaders of the database are then superseded, so --restored asks first,
unless --yes is given. Epochs never go back, so --above wants --yes if EPOCH is more
than 1000000000 above all that is recorded.

With --tokens it begins a new generation of the tokens of one database instead, for
the resources with election: token, and leaves the lease service alone. Run it when a
token was too high by mistake, or when the application's elector counts from the
beginning again. Whoever leads under a token is superseded, and every token counts as
higher than all before. First stop the workers that have a wrong token: they may bring
it again.

If upstream.address names several hosts and one of them cannot be looked at, --at says
which one is the primary.`

// bumpOptions are the flags of generation bump.
type bumpOptions struct {
	config   string
	database string
	at       string // the host that is the primary, if there are several
	above    int64
	restored bool
	yes      bool
	tokens   bool
}

func runGeneration(ctx context.Context, t terminal, args []string) error {
	var o bumpOptions
	fs := flag.NewFlagSet("generation", flag.ContinueOnError)
	fs.StringVar(&o.config, "config", t.getenv("FENCEPOST_CONFIG"), "configuration `file`, as for serve")
	fs.StringVar(&o.database, "database", "", "`name` of the database")
	fs.StringVar(&o.at, "at", "", atFlag)
	fs.Int64Var(&o.above, "above", 0, "the highest `epoch` that was ever granted")
	fs.BoolVar(&o.restored, "restored", false, "the database was restored, and the highest epoch is unknown")
	fs.BoolVar(&o.yes, "yes", false, "do not ask before --restored, and accept a distant --above")
	fs.BoolVar(&o.tokens, "tokens", false, "begin a new generation of tokens, and not of leases")
	verb := ""
	if len(args) > 0 && args[0] == "bump" {
		verb, args = args[0], args[1:]
	}
	if err := parseFlags(t, fs, generationAbout, args, 0); err != nil {
		return err
	}
	switch {
	case verb == "":
		return usagef("no action given: use generation bump")
	case o.above < 0:
		return usagef("--above is %d: an epoch must be positive", o.above)
	case o.above > mostAbove:
		return usagef("--above is %d: the highest possible is %d, which leaves room for the epochs to come", o.above, int64(mostAbove))
	case o.above > 0 && o.restored:
		return usagef("--above and --restored are mutually exclusive")
	case o.at != "" && o.database == "":
		return usagef("--at is about --database, which is not given")
	case o.tokens && (o.above > 0 || o.restored):
		return usagef("--tokens and --above or --restored are mutually exclusive")
	case o.tokens && o.database == "":
		return usagef("--database is required: the tokens of each database have their own generation")
	case (o.above > 0 || o.restored) && o.database == "":
		return usagef("--database is required: epochs are per database")
	}
	cfg, err := loadConfig(o.config, t.environ())
	if err != nil {
		return err
	}
	if e, ok := kinds.Of(cfg); ok && e.PerDatabase && o.database == "" {
		return usagef("--database is required: the elector %s has one generation per database", e.Name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, orderTimeout, fmt.Errorf("the command was given up after %s", orderTimeout))
	defer cancel()
	if o.tokens {
		return bumpTokens(ctx, t, cfg, o)
	}
	return bump(ctx, t, cfg, o)
}

// bumpTokens begins a new generation of tokens. Those who lead are superseded first: somebody
// who still leads afterwards was granted an epoch in between.
func bumpTokens(ctx context.Context, t terminal, cfg config.Config, o bumpOptions) error {
	aim := hosts.Aim{At: o.at, Notes: t.stdout, Warnings: t.stderr, Out: t.stdout}
	return hosts.Act(ctx, cfg, o.database, aim, func(ctx context.Context, db *fence.Database, out io.Writer) error {
		if err := evictTokens(ctx, out, db, cfg, o.database, math.MaxInt64); err != nil {
			return err
		}
		number, err := token.BumpGeneration(ctx, db.Durable())
		if err != nil {
			return err
		}
		if err := evictTokens(ctx, out, db, cfg, o.database, number); err != nil {
			return fmt.Errorf("generation %d of tokens has begun, but a worker of an earlier one may still lead (run this again): %w", number, err)
		}
		fmt.Fprintf(out, "database %s: generation %d of tokens has begun\n", o.database, number)
		return nil
	})
}

// evictTokens takes the lead from those who have it under a token of a generation before this
// one.
func evictTokens(ctx context.Context, out io.Writer, db *fence.Database, cfg config.Config, database string, before int64) error {
	list, err := db.Status(ctx)
	if err != nil {
		return err
	}
	by := (&orderOptions{reason: "generation bump --tokens"}).orderer()
	for _, r := range list {
		if r.Source != fencing.SourceToken || r.Generation >= before {
			continue
		}
		order, err := operator.New(db).Evict(ctx, r.Resource, r.Worker, 0, by)
		if err != nil {
			return err
		}
		switch {
		case order == nil:
		case order.Worker == "": // the ledger does not say whose token it was
			fmt.Fprintf(out, "database %s: resource %s: token %d is superseded; nobody holds epoch %d\n", database, table.Dash(r.Resource), r.Index, order.Epoch)
		default:
			fmt.Fprintf(out, "database %s: resource %s: worker %s with token %d is superseded; nobody holds epoch %d\n",
				database, table.Dash(r.Resource), table.Dash(order.Worker), r.Index, order.Epoch)
			sayLost(ctx, out, db, database, order, func(worker string) { sayDiscarded(out, cfg, database, r.Resource, worker) })
		}
	}
	return nil
}

const (
	// mostAbove leaves half of all epochs to the workers.
	mostAbove = 1 << 62
	// farAbove is by how much --above may exceed what is recorded before the command wants --yes.
	farAbove = 1_000_000_000
)

// confirmAbove returns an error if --above is so far above the recorded epochs that it looks like a
// mistake. Epochs never go back.
func confirmAbove(ctx context.Context, db *fence.Database, o bumpOptions) error {
	if o.above == 0 || o.yes {
		return nil
	}
	list, err := db.Status(ctx)
	if err != nil {
		return err
	}
	var highest fencing.Epoch
	for _, r := range list {
		highest = max(highest, r.Epoch)
	}
	if o.above-int64(highest) > farAbove {
		return fmt.Errorf("nothing changed: --above %d is far above the highest recorded epoch, %d, and epochs never go back: if you mean it, run the command again with --yes", o.above, highest)
	}
	return nil
}

// confirmRestored says what --restored is about to do, and asks whether to go on.
func confirmRestored(ctx context.Context, t terminal, db *fence.Database, database string) error {
	list, err := db.Status(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.stdout, "database %s: this raises the epochs of all %d resources far above the recorded ones:\n", database, len(list))
	for _, r := range list {
		if r.Worker == "" {
			fmt.Fprintf(t.stdout, "  resource %s: epoch %d, which nobody holds\n", table.Dash(r.Resource), r.Epoch)
		} else {
			fmt.Fprintf(t.stdout, "  resource %s: worker %s holds epoch %d, and is superseded\n", table.Dash(r.Resource), table.Dash(r.Worker), r.Epoch)
		}
	}
	fmt.Fprint(t.stdout, "All workers of the lost epochs must have stopped. Type yes to go on: ")
	answer, err := readUntil(ctx, func() (string, error) { return bufio.NewReader(t.stdin).ReadString('\n') })
	fmt.Fprintln(t.stdout)
	switch {
	case ctx.Err() != nil:
		return errors.New("nothing changed: interrupted before there was an answer")
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("read the answer: %w", err)
	case strings.TrimSpace(answer) != "yes":
		return errors.New("nothing changed: the answer was not yes (--yes continues without asking)")
	}
	return nil
}

// readUntil calls read, which reads standard input, until ctx ends. A read that is then still waiting ends with
// the process.
func readUntil[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := read()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// bump starts a new generation, and then raises the epochs if requested.
func bump(ctx context.Context, t terminal, cfg config.Config, o bumpOptions) (err error) {
	leases, err := kinds.Open(cfg, "generation bump", zap.NewNop())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leases.Close()) }()
	if o.database == "" {
		done, err := leases.BumpGeneration(ctx, "", nil)
		if err == nil {
			fmt.Fprintln(t.stdout, done)
		}
		return err
	}
	aim := hosts.Aim{At: o.at, Notes: t.stdout, Warnings: t.stderr, Out: t.stdout}
	return hosts.Act(ctx, cfg, o.database, aim, func(ctx context.Context, db *fence.Database, out io.Writer) error {
		if err := confirmAbove(ctx, db, o); err != nil {
			return err
		}
		if o.restored && !o.yes {
			if err := confirmRestored(ctx, t, db, o.database); err != nil {
				return err
			}
		}
		done, err := leases.BumpGeneration(ctx, o.database, db)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, done)
		return raise(ctx, out, db, cfg, o)
	})
}

// raise raises the epochs of a database if that is requested.
func raise(ctx context.Context, out io.Writer, db *fence.Database, cfg config.Config, o bumpOptions) error {
	if o.above == 0 && !o.restored {
		fmt.Fprintf(out, "database %s: epochs are unchanged (--above or --restored raise them)\n", o.database)
		return nil
	}
	by := (&orderOptions{reason: "generation bump"}).orderer()
	raised, err := operator.New(db).RaiseEpochs(ctx, fencing.Epoch(o.above), by)
	for _, resource := range slices.Sorted(maps.Keys(raised)) {
		if r := raised[resource]; r.Raised {
			fmt.Fprintf(out, "database %s: resource %s is now at epoch %d, which nobody holds\n", o.database, resource, r.Epoch)
			if r.Worker != "" {
				order := fencing.Order{Resource: resource, Worker: r.Worker, Epoch: r.Epoch}
				sayLost(ctx, out, db, o.database, &order, func(worker string) { sayDiscarded(out, cfg, o.database, resource, worker) })
			}
		} else {
			fmt.Fprintf(out, "database %s: resource %s stays at epoch %d, which is above %d already\n", o.database, resource, r.Epoch, o.above)
		}
	}
	return err
}
