package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// WorkerOptions configures one worker process.
type WorkerOptions struct {
	Name string
	// Lease is the DSN, through Fencepost, on which the worker asks for its role. It names
	// the resource; the worker adds its id.
	Lease string
	// Work is the DSN on which it charges invoices. If empty, it uses the same
	// connection, as an application behind Fencepost does.
	Work string
	// Pause is how long a charge takes at the payment service.
	Pause time.Duration
	Out   io.Writer // receives one event per line
	Log   io.Writer // receives errors
}

// Kinds of events that a worker reports.
const (
	eventRole     = "role"     // its role changed, or it reconnected
	eventInserted = "inserted" // the INSERT of a charge is done, the UPDATE is not
	eventCharged  = "charged"  // a charge was committed
	eventRefused  = "refused"  // a charge failed
	eventTold     = "told"     // the query for its role failed
)

// event is a line that a worker writes.
type event struct {
	Worker   string `json:"worker"`
	Kind     string `json:"kind"`
	Role     string `json:"role,omitempty"`
	Epoch    string `json:"epoch,omitempty"`
	Invoice  int    `json:"invoice,omitempty"`
	SQLState string `json:"sqlstate,omitempty"`
	Severity string `json:"severity,omitempty"`
	Message  string `json:"message,omitempty"`
	Step     string `json:"step,omitempty"` // the statement that failed
}

// idle is how long a worker waits before it queries its role again.
const idle = 100 * time.Millisecond

// worker is an application: it knows pgx and SQL, and of Fencepost only how to name itself
// and the SHOW that returns its role.
type worker struct {
	o     WorkerOptions
	id    string // differs for each process
	lease *pgx.Conn
	work  *pgx.Conn
	last  event // the last role event
}

// RunWorker charges invoices while it leads, until ctx ends.
func RunWorker(ctx context.Context, o WorkerOptions) error {
	w := &worker{o: o, id: o.Name + ":" + strings.ToLower(rand.Text()[:4])}
	defer w.disconnect()
	for ctx.Err() == nil {
		if err := w.turn(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintln(o.Log, err)
			// Like a pool: drop the connection and open another.
			w.disconnect()
			scratch.Sleep(ctx, idle)
		}
	}
	return nil
}

// turn queries the role and charges one invoice if the worker leads.
func (w *worker) turn(ctx context.Context) error {
	if err := w.connect(ctx); err != nil {
		return err
	}
	role, err := w.askRole(ctx)
	if err != nil {
		w.reportError(eventTold, err, event{})
		return err
	}
	if role != "leader" {
		scratch.Sleep(ctx, idle)
		return nil
	}
	return w.charge(ctx)
}

// askRole queries the worker's role from Fencepost.
func (w *worker) askRole(ctx context.Context) (role string, err error) {
	var epoch string // SHOW returns text
	if err := w.lease.QueryRow(ctx, "SHOW fencepost.role").Scan(&role); err != nil {
		return "", err
	}
	if err := w.lease.QueryRow(ctx, "SHOW fencepost.epoch").Scan(&epoch); err != nil {
		return "", err
	}
	w.reportRole(role, epoch)
	return role, nil
}

// charge charges the oldest open invoice. It takes no lock, because it assumes that a
// leader is alone. That assumption breaks when it freezes.
func (w *worker) charge(ctx context.Context) error {
	var invoice int
	step := "BEGIN"
	err := pgx.BeginFunc(ctx, w.work, func(tx pgx.Tx) error {
		step = "SELECT"
		err := tx.QueryRow(ctx, "SELECT id FROM invoices WHERE state = 'open' ORDER BY id LIMIT 1").Scan(&invoice)
		if err != nil {
			return err
		}
		step = "INSERT"
		if _, err := tx.Exec(ctx, "INSERT INTO charges (invoice, worker) VALUES ($1, $2)", invoice, w.o.Name); err != nil {
			return err
		}
		w.report(event{Kind: eventInserted, Invoice: invoice})
		scratch.Sleep(ctx, w.o.Pause) // wait for the payment service
		step = "UPDATE"
		if _, err := tx.Exec(ctx, "UPDATE invoices SET state = 'charged' WHERE id = $1", invoice); err != nil {
			return err
		}
		step = "COMMIT"
		return nil
	})
	switch {
	case err == nil:
		w.report(event{Kind: eventCharged, Invoice: invoice})
	case errors.Is(err, pgx.ErrNoRows):
		scratch.Sleep(ctx, idle)
		return nil
	default:
		w.reportError(eventRefused, err, event{Invoice: invoice, Step: step})
	}
	return err
}

// reportError reports an error of the server.
func (w *worker) reportError(kind string, err error, e event) {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		e.Kind, e.SQLState, e.Severity, e.Message = kind, pgErr.Code, pgErr.Severity, pgErr.Message
		w.report(e)
	}
}

func (w *worker) connect(ctx context.Context) error {
	if w.lease != nil {
		return nil
	}
	config, err := pgx.ParseConfig(w.o.Lease)
	if err != nil {
		return fmt.Errorf("read --lease: %w", err)
	}
	config.RuntimeParams["fencepost.worker"] = w.id
	lease, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect to Fencepost: %w", err)
	}
	w.lease, w.work = lease, lease
	if w.o.Work == "" {
		return nil
	}
	if w.work, err = pgx.Connect(ctx, w.o.Work); err != nil {
		w.work = nil
		w.disconnect()
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	return nil
}

// disconnect closes both connections. It ignores errors, because the connections are no
// longer needed.
func (w *worker) disconnect() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if w.work != nil && w.work != w.lease {
		_ = w.work.Close(ctx)
	}
	if w.lease != nil {
		_ = w.lease.Close(ctx)
	}
	w.lease, w.work, w.last = nil, nil, event{}
}

func (w *worker) reportRole(role, epoch string) {
	e := event{Kind: eventRole, Role: role, Epoch: epoch}
	if e != w.last {
		w.last = e
		w.report(e)
	}
}

func (w *worker) report(e event) {
	e.Worker = w.o.Name
	line, err := json.Marshal(e)
	if err != nil {
		panic(err) // an event consists of strings and numbers
	}
	// If nobody reads any more, this process is about to be ended.
	_, _ = w.o.Out.Write(append(line, '\n'))
}
