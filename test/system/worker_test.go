package system

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture/process"
)

// workerVariable turns this test program into a worker.
const workerVariable = "FENCEPOST_TEST_WORKER"

// order is an order to a worker.
type order struct {
	Do    string    `json:"do"`              // connect, beat, pool, drain, simple, extended, or load
	Text  string    `json:"text"`            // a DSN or a statement
	Count int       `json:"count,omitempty"` // of the connections of a pool
	Load  *loadPlan `json:"load,omitempty"`
}

// report is a worker's report about an order.
type report struct {
	Role    string   `json:"role,omitempty"`  // as announced at startup
	Epoch   string   `json:"epoch,omitempty"` // as announced at startup
	Values  []string `json:"values,omitempty"`
	Failure *failure `json:"failure,omitempty"`
	Did     *deed    `json:"did,omitempty"` // of a load
}

// failure is an error as the worker saw it. Code is "" if it did not come from a
// server.
type failure struct {
	Severity, Code, Message, Detail, Hint string
}

func (f *failure) String() string {
	if f == nil {
		return "success"
	}
	return strings.TrimSpace(f.Severity + " " + f.Code + " " + f.Message)
}

func failureOf(err error) *failure {
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pgErr):
		return &failure{pgErr.Severity, pgErr.Code, pgErr.Message, pgErr.Detail, pgErr.Hint}
	default:
		return &failure{Message: err.Error()}
	}
}

// workerMain follows orders until they end.
func workerMain(orders io.Reader, reports io.Writer) int {
	in, out := bufio.NewScanner(orders), json.NewEncoder(reports)
	var conn *pgx.Conn
	var pool []*pgx.Conn
	stop := func() {}
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		var r report
		switch o.Do {
		case "connect":
			conn, r = workerConnect(o.Text)
		case "beat":
			stop, r = workerBeat(o.Text)
		case "pool":
			pool, r = workerPool(o)
		case "drain":
			r = workerDrain(pool, o.Text)
		case "load":
			runLoad(*o.Load, in, out)
			return 0
		default:
			r = workerRun(conn, o)
		}
		if err := out.Encode(r); err != nil {
			return 1 // the test has ended
		}
	}
	stop()
	if conn != nil {
		_ = conn.Close(context.Background()) // it may be broken
	}
	return 0
}

// beat is how often a worker sends something on a connection for heartbeats.
const beat = 100 * time.Millisecond

// workerBeat sends heartbeats on a connection of their own until stop is called or the
// connection ends.
func workerBeat(dsn string) (stop func(), r report) {
	conn, r := workerConnect(dsn)
	if conn == nil {
		return func() {}, r
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close(context.Background()) // it may be broken
		tick := time.NewTicker(beat)
		defer tick.Stop()
		for conn.Ping(ctx) == nil {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-done }, r
}

func workerConnect(dsn string) (*pgx.Conn, report) {
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		return nil, report{Failure: failureOf(err)}
	}
	status := conn.PgConn().ParameterStatus
	return conn, report{Role: status("fencepost.role"), Epoch: status("fencepost.epoch")}
}

// workerPool connects as often as the order says, and reports the role of each connection.
func workerPool(o order) (pool []*pgx.Conn, r report) {
	for range o.Count {
		conn, one := workerConnect(o.Text)
		if conn == nil {
			r.Failure = one.Failure
			break
		}
		pool, r.Values = append(pool, conn), append(r.Values, one.Role)
	}
	return pool, r
}

// workerDrain runs a statement on each connection of the pool, closes it, and reports the SQLSTATE that it got, "" for none.
func workerDrain(pool []*pgx.Conn, sql string) (r report) {
	for _, conn := range pool {
		_, err := conn.Exec(context.Background(), sql)
		r.Values = append(r.Values, stateOf(err))
		_ = conn.Close(context.Background()) // it may be broken
	}
	return r
}

// workerRun runs one statement with the protocol that the order names.
func workerRun(conn *pgx.Conn, o order) report {
	if conn == nil {
		return report{Failure: &failure{Message: "not connected"}}
	}
	ctx := context.Background()
	if o.Do == "extended" {
		result := conn.PgConn().ExecParams(ctx, o.Text, nil, nil, nil, nil).Read()
		return report{Values: values(result), Failure: failureOf(result.Err)}
	}
	results, err := conn.PgConn().Exec(ctx, o.Text).ReadAll()
	r := report{Failure: failureOf(err)}
	for _, result := range results {
		r.Values = append(r.Values, values(result)...)
	}
	return r
}

// values returns the first column of a result.
func values(result *pgconn.Result) []string {
	var found []string
	for _, row := range result.Rows {
		found = append(found, string(row[0]))
	}
	return found
}

// worker is a worker in a separate process.
type worker struct {
	*process.Process
	t       testing.TB
	name    string
	orders  *os.File
	reports chan report // closed when it ends
}

// worker starts a worker, which waits for orders.
func (h *cluster) worker(name string) *worker {
	h.t.Helper()
	self, err := os.Executable()
	if err != nil {
		h.t.Fatalf("find this program: %v", err)
	}
	cmd := exec.Command(self)
	cmd.Env = process.Environment(workerVariable + "=1")
	cmd.Stderr = os.Stderr
	ordersRead, ordersWrite, err1 := os.Pipe()
	reportsRead, reportsWrite, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		h.t.Fatalf("create pipes: %v", err)
	}
	cmd.Stdin, cmd.Stdout = ordersRead, reportsWrite
	w := &worker{t: h.t, name: name, orders: ordersWrite, reports: make(chan report, 64)}
	w.Process = process.Start(h.t, "worker "+name, cmd)
	_, _ = ordersRead.Close(), reportsWrite.Close() // the child has its own
	go func() {
		defer close(w.reports)
		defer reportsRead.Close()
		for in := json.NewDecoder(reportsRead); ; {
			var r report
			if in.Decode(&r) != nil { // its end, or an incomplete line of a killed worker
				return
			}
			w.reports <- r
		}
	}()
	h.t.Cleanup(func() {
		w.Kill(h.t)
		_ = ordersWrite.Close()
		for range w.reports { // until the reader has ended
		}
	})
	return w
}

// tell gives an order. A frozen worker follows it when it is thawed.
func (w *worker) tell(o order) {
	w.t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		w.t.Fatalf("encode an order: %v", err)
	}
	if _, err := w.orders.Write(append(text, '\n')); err != nil {
		w.t.Fatalf("send an order to %s: %v", w.name, err)
	}
}

// answer returns the report on the oldest order without one.
func (w *worker) answer() report {
	w.t.Helper()
	select {
	case r, ok := <-w.reports:
		if !ok {
			w.t.Fatalf("%s ended without a report", w.name)
		}
		return r
	case <-time.After(process.Patience):
		w.t.Fatalf("%s sent no report within %s", w.name, process.Patience)
		return report{}
	}
}

// do gives an order and waits for its report.
func (w *worker) do(what, text string) report {
	w.t.Helper()
	w.tell(order{Do: what, Text: text})
	return w.answer()
}

// must gives orders that have to succeed.
func (w *worker) must(what string, texts ...string) (r report) {
	w.t.Helper()
	for _, text := range texts {
		if r = w.do(what, text); r.Failure != nil {
			w.t.Fatalf("%s: %s %q: %v", w.name, what, text, r.Failure)
		}
	}
	return r
}
