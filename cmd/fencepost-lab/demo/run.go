package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

var workerNames = [2]string{"worker-a", "worker-b"}

const (
	// pause is the time between the INSERT and the UPDATE of a charge.
	pause = 300 * time.Millisecond
	// chargesBefore is how many invoices the first leader charges before it is frozen.
	chargesBefore = 2
	// patience bounds every wait of the demo.
	patience = 30 * time.Second
)

// run is one run of the workers, with or without the fence.
type run struct {
	env     *environment
	report  *reporter
	fenced  bool
	workers map[string]*scratch.Process
	events  chan event
	readers sync.WaitGroup
	charged map[int]bool      // invoices reported as charged
	refused int               // lines in the audit log
	audit   []scratch.LogLine // the lines that have not been shown yet
	calm    bool              // the leader has been thawed and answered: show less
}

// runWorkers runs two workers on a fresh queue, freezes the leader in the middle of a
// charge until the other worker has made that charge, thaws it, and counts the results.
func runWorkers(ctx context.Context, env *environment, report *reporter, fenced bool) (res result, err error) {
	if fenced {
		report.section("With the fence: the workers' connections go through Fencepost",
			"Each charge is one transaction: SELECT the oldest open invoice, INSERT a charge, wait for the", "payment service, UPDATE the invoice.")
	} else {
		report.section("Without the fence: the same lease, but the workers write directly to Postgres",
			"They ask Fencepost who leads, as with any lock service, and believe it until they ask again.")
	}
	if _, err := env.db.Exec(ctx, "TRUNCATE invoices, charges"); err != nil {
		return res, fmt.Errorf("empty the queue: %w", err)
	}
	if _, err := env.db.Exec(ctx, "INSERT INTO invoices (id) SELECT generate_series(1, $1::int)", Invoices); err != nil {
		return res, fmt.Errorf("fill the queue: %w", err)
	}
	if _, err := env.log.next(); err != nil { // skip what was logged before this run
		return res, err
	}
	r := &run{env: env, report: report, fenced: fenced, workers: map[string]*scratch.Process{}, events: make(chan event, 64), charged: map[int]bool{}}
	defer func() { err = errors.Join(err, r.stopWorkers()) }()
	for _, name := range workerNames {
		if err := r.startWorker(name); err != nil {
			return res, err
		}
	}
	if err := r.freezeLeader(ctx); err != nil {
		return res, err
	}
	return r.count(ctx)
}

// startWorker runs a worker as a separate process and reads its events.
func (r *run) startWorker(name string) error {
	args := []string{"demo-worker", "--name", name, "--lease", r.env.leaseDSN(), "--pause", pause.String()}
	if !r.fenced {
		args = append(args, "--work", r.env.pg.DSN(workerRole, database))
	}
	log, err := os.OpenFile(filepath.Join(r.env.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create the worker's log: %w", err)
	}
	defer log.Close() // the child has its own
	// Use a separate pipe: Wait would close StdoutPipe before it has been read.
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create a pipe: %w", err)
	}
	defer write.Close()
	cmd := exec.Command(r.env.o.Self, args...)
	cmd.Stdout, cmd.Stderr = write, log
	p, err := scratch.Start(name, cmd)
	if err != nil {
		return errors.Join(err, read.Close())
	}
	r.workers[name] = p
	r.readers.Go(func() {
		defer read.Close()
		for lines := bufio.NewScanner(read); lines.Scan(); {
			var e event
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				r.events <- e
			}
		}
	})
	return nil
}

// stopWorkers ends the workers, including frozen ones, and waits for their readers.
func (r *run) stopWorkers() error {
	var errs []error
	go func() {
		r.readers.Wait()
		close(r.events)
	}()
	for _, p := range r.workers {
		_ = p.Signal(syscall.SIGCONT) // fails if the worker is already gone
		errs = append(errs, p.Stop(syscall.SIGTERM))
	}
	for range r.events { // until the readers have ended
	}
	return errors.Join(errs...)
}

// freezeLeader freezes the leader in the middle of a charge, thaws it when the other
// worker has made that charge, and waits until all invoices are charged.
func (r *run) freezeLeader(ctx context.Context) error {
	frozen, err := r.await(ctx, "a leader in the middle of a charge", func(e event) bool {
		return e.Kind == eventInserted && len(r.charged) >= chargesBefore
	})
	if err != nil {
		return err
	}
	if err := r.workers[frozen.Worker].Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze %s: %w", frozen.Worker, err)
	}
	r.report.demo("freezes %s (SIGSTOP) between its INSERT and its UPDATE of invoice %d", frozen.Worker, frozen.Invoice)
	_, err = r.await(ctx, "the other worker to lead", func(e event) bool {
		return e.Worker != frozen.Worker && e.Kind == eventRole && e.Role == "leader"
	})
	if err != nil {
		return err
	}
	_, err = r.await(ctx, "the other worker to charge the same invoice", func(e event) bool {
		return e.Worker != frozen.Worker && e.Kind == eventCharged && e.Invoice >= frozen.Invoice
	})
	if err != nil {
		return err
	}
	r.report.demo("thaws %s (SIGCONT): it goes on with invoice %d as if nothing had happened", frozen.Worker, frozen.Invoice)
	if err := r.workers[frozen.Worker].Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("thaw %s: %w", frozen.Worker, err)
	}
	_, err = r.await(ctx, "the thawed worker's write", func(e event) bool {
		return e.Worker == frozen.Worker && (e.Kind == eventRefused || e.Kind == eventCharged)
	})
	if err != nil {
		return err
	}
	r.calm = true
	_, err = r.await(ctx, "the queue to be empty", func(event) bool { return len(r.charged) >= Invoices })
	return err
}

// await shows what the workers and Fencepost report until a worker's event satisfies
// wanted.
func (r *run) await(ctx context.Context, what string, wanted func(event) bool) (event, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var e event
		select {
		case e = <-r.events:
		case <-tick.C:
		case <-r.env.fence.Done():
			return e, fmt.Errorf("Fencepost has ended: %v\n%s", r.env.fence.Err(), scratch.Tail(r.env.log.path, 10))
		case <-ctx.Done():
			return e, fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-timer.C:
			return e, fmt.Errorf("wait for %s: it did not happen within %s\n%s", what, patience, scratch.Tail(r.env.log.path, 10))
		}
		if err := r.showLog(); err != nil {
			return e, err
		}
		if e.Kind == "" {
			continue
		}
		if e.Kind == eventCharged {
			r.charged[e.Invoice] = true
		}
		if e.Kind == eventRefused && r.fenced {
			if err := r.awaitAudit(); err != nil {
				return e, err
			}
		}
		r.show(e)
		if wanted(e) {
			return e, nil
		}
	}
}

// awaitAudit waits a moment for the audit line of a refused write, because the worker
// gets its reply first.
func (r *run) awaitAudit() error {
	for deadline := time.Now().Add(time.Second); len(r.audit) == 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err := r.showLog(); err != nil {
			return err
		}
	}
	return nil
}

// show shows an event, followed by the lines of the audit log about it.
func (r *run) show(e event) {
	if r.calm && e.Kind == eventInserted {
		return
	}
	r.report.event(e)
	for _, l := range r.audit {
		if r.fenced {
			r.report.audit(l)
		}
	}
	r.audit = nil
}

// showLog shows what Fencepost has logged since the last call.
func (r *run) showLog() error {
	lines, err := r.env.log.next()
	for _, l := range lines {
		if refused(l) {
			r.refused++
			r.audit = append(r.audit, l)
			continue
		}
		r.report.fencepost(l)
	}
	return err
}

// count reads the result from the database and the audit log.
func (r *run) count(ctx context.Context) (result, error) {
	if err := r.showLog(); err != nil {
		return result{}, err
	}
	res := result{refused: r.refused}
	if err := r.env.db.QueryRow(ctx, "SELECT count(*) FROM invoices").Scan(&res.invoices); err != nil {
		return res, fmt.Errorf("count the invoices: %w", err)
	}
	rows := r.env.db.QueryRow(ctx, "SELECT count(*) FROM (SELECT FROM charges GROUP BY invoice HAVING count(*) > 1) AS twice")
	if err := rows.Scan(&res.chargedTwice); err != nil {
		return res, fmt.Errorf("count the charges: %w", err)
	}
	switch {
	case res.chargedTwice > 0:
		r.report.verdict(false, "charged twice: %d of %d invoices. Nothing stopped the thawed worker", res.chargedTwice, res.invoices)
	case r.fenced:
		r.report.verdict(true, "each of the %d invoices was charged once: the takeover rolled back the frozen charge, and the late write was refused", res.invoices)
	}
	return res, nil
}
