// Package demo shows Fencepost's main purpose on real servers: a leader freezes in the
// middle of a charge, another worker takes over, and the first one resumes.
//
// Everything is real and discarded afterwards: a PostgreSQL created by initdb, a separate Fencepost process, a Consul,
// an etcd, a kube-apiserver, a Redis, a ZooKeeper or two more proxies if requested, and two worker processes that
// charge invoices with plain pgx. The same events happen twice, with and without the fence, and the results are counted
// in the database and in the audit log.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Options configures a demo. The zero value runs it with the embedded elector.
type Options struct {
	Election    string // one of Elections
	PostgresBin string // directory of initdb and postgres; "" searches for one
	Consul      string // the consul program; "" searches for one
	Etcd        string // the etcd program; "" searches for one
	APIServer   string // the kube-apiserver program; "" searches for one
	Redis       string // the redis-server program; "" searches for one
	ZooKeeper   string // the zookeeper program; "" searches for one
	Program     string // the fencepost program
	Self        string // this program, which is the workers too
	Keep        bool   // keep the directory with logs and data
	Color       bool
	Out         io.Writer

	upstream string // the address of PostgreSQL, once it runs
	password string // of all roles
}

// Invoices is the number of invoices in the queue of each run.
const Invoices = 8

// limit bounds the duration of the whole demo.
const limit = 3 * time.Minute

// result is the result of one run, counted in the database.
type result struct {
	invoices     int
	chargedTwice int
	refused      int // lines in the audit log
}

// Run runs the demo. It returns nil only if the fence prevented double charges, and if
// they occurred without it.
func Run(ctx context.Context, o Options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	report := newReporter(o.Out, o.Color)
	env, err := startEnvironment(ctx, o, report)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.close()) }()

	fenced, err := runWorkers(ctx, env, report, true)
	if err != nil {
		return fmt.Errorf("run with the fence: %w", err)
	}
	unfenced, err := runWorkers(ctx, env, report, false)
	if err != nil {
		return fmt.Errorf("run without the fence: %w", err)
	}
	report.results(unfenced, fenced)
	return judge(unfenced, fenced)
}

// judge returns an error unless the demo showed what it is meant to show.
func judge(unfenced, fenced result) error {
	switch {
	case fenced.chargedTwice > 0:
		return fmt.Errorf("%d invoices were charged twice despite the fence", fenced.chargedTwice)
	case fenced.refused == 0:
		return errors.New("the fence refused nothing: the thawed worker's write is not in the audit log")
	case unfenced.chargedTwice == 0:
		return errors.New("nothing was charged twice without the fence: the demo did not show the problem")
	case fenced.invoices == 0 || fenced.invoices != unfenced.invoices:
		return fmt.Errorf("the runs had %d and %d invoices", fenced.invoices, unfenced.invoices)
	}
	return nil
}
