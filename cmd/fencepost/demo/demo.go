// Package demo shows Fencepost's main job on real servers: a leader freezes in
// the middle of a charge, another worker takes over, and the old one wakes up.
//
// Everything is real and thrown away afterwards: a PostgreSQL made by initdb,
// Fencepost as a process of its own, a Consul dev agent if asked for, and two
// worker processes that charge invoices with plain pgx. The same story runs
// twice, with the fence and without it, and the results are counted in the
// database and in the audit log.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Options are the settings of a demo. The zero value runs it with the embedded
// elector.
type Options struct {
	Election    string // "postgres" or "consul"
	PostgresBin string // directory of initdb and postgres; "" looks for one
	Consul      string // the consul program; "" looks for one
	Program     string // the fencepost program; "" means this one
	Keep        bool   // keep the directory with logs and data
	Color       bool
	Out         io.Writer
}

// Invoices is how many invoices wait in the queue of each act.
const Invoices = 8

// limit bounds the whole demo: something that hangs must not hang for ever.
const limit = 3 * time.Minute

// result is what one act came to, counted in the database.
type result struct {
	invoices     int
	chargedTwice int
	refused      int // lines of the audit log
}

// Run runs the demo. It returns nil only if the fence held and its absence
// showed.
func Run(ctx context.Context, o Options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if o.Program == "" {
		if o.Program, err = os.Executable(); err != nil {
			return fmt.Errorf("find the fencepost program: %w", err)
		}
	}
	say := newStory(o.Out, o.Color)
	h, err := openHouse(ctx, o, say)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()

	fenced, err := playAct(ctx, h, say, true)
	if err != nil {
		return fmt.Errorf("act with the fence: %w", err)
	}
	unfenced, err := playAct(ctx, h, say, false)
	if err != nil {
		return fmt.Errorf("act without the fence: %w", err)
	}
	say.results(unfenced, fenced)
	return judge(unfenced, fenced)
}

// judge says whether the demo showed what it is there to show.
func judge(unfenced, fenced result) error {
	switch {
	case fenced.chargedTwice > 0:
		return fmt.Errorf("%d invoices were charged twice although the fence was there", fenced.chargedTwice)
	case fenced.refused == 0:
		return errors.New("the fence refused nothing: the thawed worker's write is not in the audit log")
	case unfenced.chargedTwice == 0:
		return errors.New("nothing was charged twice without the fence: the demo did not show the problem")
	case fenced.invoices == 0 || fenced.invoices != unfenced.invoices:
		return fmt.Errorf("the acts had %d and %d invoices", fenced.invoices, unfenced.invoices)
	}
	return nil
}
