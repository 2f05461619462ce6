package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/handover"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/internal/table"
)

const handoverAbout = `
Usage: fencepost handover RESOURCE --to WORKER [--for DURATION] [--timeout DURATION]
                          [--reason TEXT] (--database NAME [--config FILE] | --dsn DSN)

Moves the lead of a resource to a worker of your choice, which must campaign for it
through any proxy, and waits for the outcome. After a second and a half, by when every
proxy knows of it, the leader's new transactions wait, and the lease is released. Its
running transactions have the grace (lease.grace) to end. The chosen worker then leads
under a new epoch, and the former leader is refused (ZF001).

Until --for has passed after that (by default the grace and 5s), nobody else may lead.
If the chosen worker dies meanwhile, any worker may take over at that time.

The command changes nothing if that worker leads already, does not campaign, is silent
or barred, or if the resource is paused or is being handed over to another worker.
Giving up after --timeout leaves the hand-over as it is: run the command again to see
what has become of it.
` + connecting

const (
	// handoverLook is how often the command looks at what has become of a hand-over.
	handoverLook = 50 * time.Millisecond
	// handoverTold is how long it waits, when the chosen worker leads, for the proxies to say how
	// long that took.
	handoverTold = 2 * time.Second
	// handoverLongest is the longest that an offer lasts.
	handoverLongest = time.Hour
	// handoverTimeout is the default of --timeout.
	handoverTimeout = time.Minute
)

func runHandover(ctx context.Context, t terminal, args []string) error {
	var o orderOptions
	fs := flag.NewFlagSet("handover", flag.ContinueOnError)
	o.flags(fs, t)
	to := fs.String("to", "", "`worker` that is to lead")
	length := fs.String("for", "", "`duration` for which nobody else may lead, such as 10s or 2m, if not the grace and 5s")
	timeout := fs.Duration("timeout", handoverTimeout, "`duration` for which the command waits for the outcome")
	resource, err := parseOrder(t, fs, handoverAbout, "resource", args)
	if err != nil {
		return err
	}
	switch {
	case *to == "":
		return usagef("--to is required: it names the worker that is to lead")
	case *timeout <= 0 || *timeout > orderTimeout:
		return usagef("--timeout is %s: use more than 0s, and at most %s", *timeout, orderTimeout)
	}
	o.waits = *timeout
	var d time.Duration
	if *length != "" {
		if d, err = parseDays("--for", *length); err != nil {
			return err
		}
		if d > handoverLongest {
			return usagef("--for is %s: use at most %s, because nobody else may lead meanwhile", *length, handoverLongest)
		}
	}
	return o.give(ctx, t, func(ctx context.Context, t terminal, db *fence.Database, database string) error {
		if o.cfg != nil && o.cfg.Resources[resource].Election == "token" {
			return fmt.Errorf("resource %s was not handed over: the application elects its leader (resources.<name>.election is token). Let the application's own elector choose the worker: whoever brings the highest token leads", table.Dash(resource))
		}
		order, err := operator.New(db).Handover(ctx, resource, *to, d, o.orderer())
		if err != nil {
			return err
		}
		o.sayShadow(t, database, resource)
		if order == nil {
			fmt.Fprintf(t.stdout, "database %s: worker %s leads resource %s already: nothing changed\n", database, table.Dash(*to), table.Dash(resource))
			return nil
		}
		waiting, cancel := context.WithTimeoutCause(ctx, *timeout, errNotYet)
		defer cancel()
		h := handingOver{t: t, db: db, database: database, order: order}
		err = h.await(waiting)
		if errors.Is(context.Cause(waiting), errNotYet) && err != nil {
			return h.unknown(*timeout)
		}
		if err != nil {
			return err
		}
		if former := h.state.Former; former != "" && former != *to {
			o.sayStale(t, database, resource, former)
		}
		return nil
	})
}

// errNotYet is why the command gives up while a hand-over continues.
var errNotYet = errors.New("it has not been handed over yet")

// handingOver is a hand-over whose outcome is awaited.
type handingOver struct {
	t        terminal
	db       *fence.Database
	database string
	order    *fencing.Order
	state    handover.State // as last seen
	unseen   error          // why it could not be seen since; nil if it could
}

// unknown is the error of a command that gives up waiting for the outcome.
func (h *handingOver) unknown(after time.Duration) error {
	why := ""
	if h.unseen != nil {
		why = fmt.Sprintf(" (%v)", h.unseen)
	}
	return fmt.Errorf("resource %s: %w after %s%s: worker %s may take the lead until %s, and any worker after that. Run the command again to see what has become of it, or end it with fencepost pause and fencepost resume",
		table.Dash(h.order.Resource), errNotYet, after, why, table.Dash(h.order.Worker), h.order.Until.Local().Format(time.TimeOnly))
}

// await waits for the outcome, and says it. Its error is that of a hand-over that has failed.
func (h *handingOver) await(ctx context.Context) error {
	tick := time.NewTicker(handoverLook)
	defer tick.Stop()
	for over := false; ; {
		if err := h.look(ctx, over); err != nil {
			return err
		}
		s := h.state
		switch {
		case h.unseen != nil:
		case s.Order != h.order.ID:
			return fmt.Errorf("resource %s: another hand-over has taken the place of this one", table.Dash(h.order.Resource))
		case s.Epoch > s.From:
			return h.ended(ctx, tick)
		case over:
			return h.ranOut()
		}
		over = h.unseen == nil && s.Left <= 0 // then look once more, after a grant that may be in progress
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// look reads how far the hand-over has come. While the database cannot be reached, which does not end
// the hand-over, it returns no error and unseen says why.
func (h *handingOver) look(ctx context.Context, settled bool) error {
	state, err := handover.Look(ctx, h.db.Pool(), h.order.Resource, settled)
	var refused *pgconn.PgError
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("resource %s was not handed over: %w", table.Dash(h.order.Resource), fencing.ErrRemoved)
	case errors.As(err, &refused) && !unavailable[refused.Code[:min(2, len(refused.Code))]]:
		return err
	case err != nil:
		h.unseen = err
	default:
		h.state, h.unseen = state, nil
	}
	return nil
}

// unavailable are the classes of errors of a server that cannot be asked now: it starts, stops, recovers, or
// has no connection left.
var unavailable = map[string]bool{"08": true, "53": true, "57": true}

// ended says who has the new epoch.
func (h *handingOver) ended(ctx context.Context, tick *time.Ticker) error {
	resource := table.Dash(h.order.Resource)
	switch h.state.Holder {
	case h.order.Worker:
	case "":
		return fmt.Errorf("resource %s: another order has ended the hand-over: nobody holds epoch %d", resource, h.state.Epoch)
	default:
		return fmt.Errorf("resource %s was not handed over: worker %s was granted epoch %d", resource, table.Dash(h.state.Holder), h.state.Epoch)
	}
	taken := h.state
	for give := time.After(handoverTold); h.state.Gap() == 0 && ctx.Err() == nil; {
		select {
		case <-tick.C:
			if err := h.look(ctx, false); err != nil || h.state.Order != h.order.ID {
				h.state = taken // what is known is enough
			}
			continue
		case <-give:
		case <-ctx.Done():
		}
		break
	}
	from, gap := "nobody led", ""
	if h.state.Former != "" {
		from = fmt.Sprintf("worker %s had epoch %d", table.Dash(h.state.Former), h.state.From)
	}
	if d := h.state.Gap(); d > 0 {
		gap = fmt.Sprintf("; no transaction could begin to write for %s", d.Round(time.Millisecond))
	}
	fmt.Fprintf(h.t.stdout, "database %s: worker %s leads resource %s with epoch %d; before, %s%s\n",
		h.database, table.Dash(h.order.Worker), resource, taken.Epoch, from, gap)
	return nil
}

// ranOut is the error of a hand-over whose offer has run out.
func (h *handingOver) ranOut() error {
	why := fmt.Sprintf("worker %s has not taken the lead, and any worker may now", table.Dash(h.order.Worker))
	if h.state.Former != "" && h.state.Stopped.IsZero() {
		why = fmt.Sprintf("the leader was not stopped, so worker %s, which had epoch %d, may lead still or again: its proxy is not reachable, is older than this command, or does not look for orders",
			table.Dash(h.state.Former), h.state.From)
	}
	return fmt.Errorf("resource %s was not handed over: the offer to worker %s has run out. %s", table.Dash(h.order.Resource), table.Dash(h.order.Worker), why)
}
