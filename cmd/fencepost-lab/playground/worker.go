package playground

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// WorkerOptions configures one worker process.
type WorkerOptions struct {
	Name string
	// DSN leads to the database through Fencepost. The worker adds the resource and its id.
	DSN      string
	Resource string
	Think    time.Duration // between reading and writing, in one transaction
	Rest     time.Duration // after each transaction
	// Insist makes it write whatever its role is, because another elector has told it that it leads.
	Insist bool
	// Again is for a worker that insists: how long after it was superseded it campaigns again.
	Again time.Duration
	Out   io.Writer // receives one report per line
}

// Kinds of reports.
const (
	reportConnected = "connected"
	reportRole      = "role"    // as it was told, if that has changed
	reportRead      = "read"    // in a transaction that is going to write
	reportWrote     = "wrote"   // and committed
	reportRefused   = "refused" // with an error of the server
	reportBroken    = "broken"  // the connection failed otherwise
)

// report is a line that a worker writes.
type report struct {
	Kind     string `json:"kind"`
	Worker   string `json:"worker"` // its id
	Role     string `json:"role,omitempty"`
	Epoch    int64  `json:"epoch,omitempty"`
	N        int64  `json:"n,omitempty"`    // what it writes
	Step     string `json:"step,omitempty"` // the statement that failed
	SQLState string `json:"sqlstate,omitempty"`
	Severity string `json:"severity,omitempty"`
	Message  string `json:"message,omitempty"`
}

const (
	// idleRest is how long a worker that does not lead waits before it asks for its role again.
	idleRest = 200 * time.Millisecond
	// connectTimeout bounds an attempt to connect, which may meet a partition.
	connectTimeout = 15 * time.Second
)

// notLeading ends a turn in which there was nothing to do.
var errNotLeading = errors.New("does not lead")

// worker is an application.
type worker struct {
	o     WorkerOptions
	id    string // differs for each process
	conn  *pgx.Conn
	told  report    // the last role
	until time.Time // it only observes until then
	alone bool      // its connection does not campaign
	last  report    // what it wrote last, on this connection
}

// RunWorker writes a row after another while it leads, until ctx ends.
func RunWorker(ctx context.Context, o WorkerOptions) error {
	w := &worker{o: o, id: o.Name + ":" + strings.ToLower(rand.Text()[:4])}
	defer w.disconnect()
	for ctx.Err() == nil {
		switch err := w.turn(ctx); {
		case err == nil:
			scratch.Sleep(ctx, o.Rest)
		case errors.Is(err, errNotLeading):
			scratch.Sleep(ctx, idleRest)
		default:
			if ctx.Err() == nil {
				w.failed(err)
				scratch.Sleep(ctx, o.Rest)
			}
		}
	}
	return nil
}

// turn writes one row if the worker leads.
func (w *worker) turn(ctx context.Context) error {
	if err := w.connect(ctx); err != nil {
		return err
	}
	epoch, err := w.ask(ctx)
	if err != nil {
		return err
	}
	return w.write(ctx, epoch)
}

// connect opens a connection if there is none. One that only observes is replaced when the worker
// campaigns again.
func (w *worker) connect(ctx context.Context) error {
	observes := time.Now().Before(w.until)
	if w.conn != nil && w.alone && !observes {
		w.disconnect()
	}
	if w.conn != nil {
		return nil
	}
	cfg, err := pgx.ParseConfig(w.o.DSN)
	if err != nil {
		return fmt.Errorf("read the DSN: %w", err)
	}
	cfg.RuntimeParams["fencepost.resource"], cfg.RuntimeParams["fencepost.worker"] = w.o.Resource, w.id
	if observes {
		cfg.RuntimeParams["fencepost.campaign"] = "off"
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if w.conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		w.conn = nil
		return stepError{"connect", err}
	}
	w.alone = observes
	w.say(report{Kind: reportConnected})
	return nil
}

// ask asks Fencepost for the role and the epoch.
func (w *worker) ask(ctx context.Context) (epoch int64, err error) {
	var role, text string // SHOW returns text
	if err := w.conn.QueryRow(ctx, "SHOW fencepost.role").Scan(&role); err != nil {
		return 0, stepError{"SHOW fencepost.role", err}
	}
	if err := w.conn.QueryRow(ctx, "SHOW fencepost.epoch").Scan(&text); err != nil {
		return 0, stepError{"SHOW fencepost.epoch", err}
	}
	if epoch, err = strconv.ParseInt(text, 10, 64); err != nil {
		return 0, fmt.Errorf("read the epoch: %w", err)
	}
	if told := (report{Kind: reportRole, Role: role, Epoch: epoch}); told != w.told {
		w.told = told
		w.say(told)
	}
	if role != "leader" && !w.o.Insist {
		return 0, errNotLeading
	}
	return epoch, nil
}

// write reads the greatest number, thinks, and writes the next one. It takes no lock, because it
// assumes that a leader is alone. A worker that insists remembers what it wrote last, and reads only
// once per epoch.
func (w *worker) write(ctx context.Context, epoch int64) error {
	step, n := "BEGIN", w.last.N+1
	remembers := w.o.Insist && epoch > 0 && w.last.Epoch == epoch
	if remembers {
		scratch.Sleep(ctx, w.o.Think)
	}
	err := pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		if !remembers {
			step = "SELECT"
			if err := tx.QueryRow(ctx, "SELECT coalesce(max(n), 0) + 1 FROM notes WHERE resource = $1", w.o.Resource).Scan(&n); err != nil {
				return err
			}
			w.say(report{Kind: reportRead, N: n})
			scratch.Sleep(ctx, w.o.Think)
		}
		step = "INSERT"
		if _, err := tx.Exec(ctx, "INSERT INTO notes (resource, n, worker, epoch) VALUES ($1, $2, $3, $4)", w.o.Resource, n, w.id, epoch); err != nil {
			return err
		}
		step = "COMMIT"
		return nil
	})
	if err != nil {
		return stepError{step, err}
	}
	w.last = report{Kind: reportWrote, N: n, Epoch: epoch}
	w.say(w.last)
	return nil
}

// stepError is an error with the statement that it is the result of.
type stepError struct {
	step string
	err  error
}

func (e stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e stepError) Unwrap() error { return e.err }

// failed reports an error, and drops the connection if it is of no more use, as a pool does. A worker
// that insists observes for a while after it was superseded: it has been told that another one leads,
// and its own elector says otherwise.
func (w *worker) failed(err error) {
	var step stepError
	errors.As(err, &step)
	var server *pgconn.PgError
	if !errors.As(err, &server) {
		w.say(report{Kind: reportBroken, Step: step.step, Message: err.Error()})
		w.disconnect()
		return
	}
	w.say(report{Kind: reportRefused, Step: step.step, SQLState: server.Code, Severity: server.Severity, Message: server.Message})
	if w.o.Insist && server.Code == "ZF001" {
		w.until = time.Now().Add(w.o.Again)
	}
	if w.conn != nil && (w.conn.IsClosed() || server.Severity != "ERROR") {
		w.disconnect()
	}
}

// disconnect ignores errors, because the connection is of no more use.
func (w *worker) disconnect() {
	if w.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.conn.Close(ctx)
	w.conn, w.told, w.last = nil, report{}, report{}
}

func (w *worker) say(r report) {
	r.Worker = w.id
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // a report consists of strings and numbers
	}
	// If nobody reads any more, this process is about to be ended.
	_, _ = w.o.Out.Write(append(line, '\n'))
}
