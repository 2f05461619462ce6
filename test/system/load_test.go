package system

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// A load does what an application does that must be alone: it reads a counter, pauses,
// and writes the value plus one. With each increment it writes three rows to the table
// entries, which say who wrote it under which epoch.
const loadSchema = `
	CREATE TABLE counter (value bigint NOT NULL);
	INSERT INTO counter VALUES (0);
	CREATE TABLE entries (worker text NOT NULL, seq int NOT NULL, part int NOT NULL, epoch bigint NOT NULL, value bigint NOT NULL);
	CREATE PROCEDURE increment(w text, s int, e bigint, v bigint) LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO entries SELECT w, s, p, e, v FROM generate_series(1, 3) p;
		UPDATE counter SET value = v;
	END $$`

// parts is how many rows belong to an increment.
const parts = 3

// loadPlan is an order to run a load.
type loadPlan struct {
	Worker string
	DSNs   []string // tried in turn
	Seed   uint64
	Think  time.Duration // between reading and writing, and inside transactions
	Styles []string      // ways to write, by name; see styles
}

// deed is one action of a load.
type deed struct {
	At    time.Time `json:"at"`
	What  string    `json:"what"` // connected, told, tries, done, or failed
	Seq   int       `json:"seq,omitempty"`
	Epoch int64     `json:"epoch,omitempty"`
	Value int64     `json:"value,omitempty"`
	Style string    `json:"style,omitempty"`
}

// turnTimeout bounds one turn of a load, so that it leaves a frozen server.
const turnTimeout = 20 * time.Second

// errNotLeader ends a turn in which there was nothing to do.
var errNotLeader = errors.New("not the leader")

// loader is a worker's load.
type loader struct {
	plan  loadPlan
	out   *json.Encoder
	rand  *rand.Rand
	conn  *pgx.Conn
	next  int // DSN
	seq   int
	epoch int64 // as last announced
}

// runLoad works until another order arrives or the orders end.
func runLoad(plan loadPlan, orders *bufio.Scanner, out *json.Encoder) {
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		orders.Scan()
	}()
	l := &loader{plan: plan, out: out, rand: rand.New(rand.NewPCG(plan.Seed, 0))}
	for {
		select {
		case <-stop:
			l.disconnect()
			return
		default:
		}
		if err := l.turn(); errors.Is(err, errNotLeader) {
			time.Sleep(20*time.Millisecond + time.Duration(l.rand.Int64N(int64(20*time.Millisecond))))
		} else if err != nil {
			l.disconnect() // as a pool does with a failed connection
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// turn makes one increment if the worker leads.
func (l *loader) turn() error {
	ctx, cancel := context.WithTimeout(context.Background(), turnTimeout)
	defer cancel()
	if err := l.connect(ctx); err != nil {
		return err
	}
	if err := l.ask(ctx); err != nil {
		return err
	}
	var value int64
	if err := l.conn.QueryRow(ctx, "SELECT value FROM counter").Scan(&value); err != nil {
		return l.failed(err)
	}
	l.think()
	l.seq++
	style := l.plan.Styles[l.rand.IntN(len(l.plan.Styles))]
	d := deed{Seq: l.seq, Epoch: l.epoch, Value: value + 1, Style: style}
	l.say("tries", d, nil)
	if err := styles[style](l, ctx, value+1); err != nil {
		l.say("failed", d, err)
		return err
	}
	l.say("done", d, nil)
	return nil
}

// connect connects to the next DSN if there is no connection.
func (l *loader) connect(ctx context.Context) error {
	if l.conn != nil {
		return nil
	}
	dsn := l.plan.DSNs[l.next%len(l.plan.DSNs)]
	l.next++
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return l.failed(err)
	}
	l.conn, l.epoch = conn, 0
	l.say("connected", deed{}, nil)
	return nil
}

// ask queries the role and the epoch. Only a leader continues.
func (l *loader) ask(ctx context.Context) error {
	var role, epoch string
	if err := l.conn.QueryRow(ctx, "SHOW fencepost.role").Scan(&role); err != nil {
		return l.failed(err)
	}
	if role != "leader" {
		return errNotLeader
	}
	if err := l.conn.QueryRow(ctx, "SHOW fencepost.epoch").Scan(&epoch); err != nil {
		return l.failed(err)
	}
	told, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return l.failed(fmt.Errorf("read the epoch: %w", err))
	}
	if told == 0 { // no longer
		return errNotLeader
	}
	if told != l.epoch {
		l.epoch = told
		l.say("told", deed{Epoch: told}, nil)
	}
	return nil
}

func (l *loader) failed(err error) error {
	l.say("failed", deed{Epoch: l.epoch}, err)
	return err
}

func (l *loader) say(what string, d deed, err error) {
	d.At, d.What = time.Now(), what
	if l.out.Encode(report{Did: &d, Failure: failureOf(err)}) != nil {
		panic("nobody listens") // the test has ended
	}
}

func (l *loader) think() { time.Sleep(time.Duration(l.rand.Int64N(int64(l.plan.Think)) + 1)) }

func (l *loader) disconnect() {
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.conn.Close(ctx) // it may be broken
	l.conn = nil
}
