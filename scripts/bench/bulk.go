package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// A row of the bulk loads has a number of eight digits and a text: lineLength bytes with separator and end.
const (
	lineLength = 100
	firstRow   = 10_000_000
	million    = 1_000_000
)

// filler is the text of a row.
var filler = strings.Repeat("x", lineLength-len("10000000\t\n"))

// series is a query of n rows that costs Postgres as little as possible, so that the proxy's share shows.
func series(n int) string {
	return fmt.Sprintf("SELECT generate_series(%d, %d), '%s'", firstRow, firstRow+n-1, filler)
}

// bulk is one run of a bulk load; it returns how many units went through.
type bulk func(ctx context.Context, s *servers, p *plan, conn *pgconn.PgConn) (units float64, err error)

// run repeats the bulk load on one connection until the time is over.
func (once bulk) run(ctx context.Context, s *servers, p *plan, by *contender, _ *cell) (one sample, err error) {
	conn, err := pgconn.Connect(ctx, by.dsn())
	if err != nil {
		return one, err
	}
	defer conn.Close(ctx)
	before, err := by.startUsage()
	if err != nil {
		return one, err
	}
	var units float64
	var took time.Duration
	for took < p.duration {
		began := time.Now()
		n, err := once(ctx, s, p, conn)
		if err != nil {
			return one, err
		}
		took += time.Since(began)
		units += n
	}
	after, err := by.usage()
	if err != nil {
		return one, err
	}
	one.rate = units / took.Seconds()
	return one.with(after.since(before), units), nil
}

// copyOut copies as many MB as the plan says to the client.
func copyOut(ctx context.Context, _ *servers, p *plan, conn *pgconn.PgConn) (float64, error) {
	bytes := p.size * million
	return float64(p.size), receive(ctx, conn, "COPY ("+series(bytes/lineLength)+") TO STDOUT", bytes)
}

// readRows reads a million rows, in units of a thousand.
func readRows(ctx context.Context, _ *servers, _ *plan, conn *pgconn.PgConn) (float64, error) {
	return million / 1000, receive(ctx, conn, series(million), million*lineLength)
}

// copyIn copies as many MB as the plan says to the server, which reads the rows and stores none.
func copyIn(ctx context.Context, _ *servers, p *plan, conn *pgconn.PgConn) (float64, error) {
	const lines = 5000
	block := bytes.Repeat(fmt.Appendf(nil, "%d\t%s\n", firstRow, filler), lines)
	_, err := conn.CopyFrom(ctx, &repeated{block: block, left: p.size * million}, "COPY bulk FROM STDIN WHERE id < 0")
	return float64(p.size), err
}

// repeated reads as a block of lines, again and again.
type repeated struct {
	block []byte
	at    int // in the block
	left  int
}

// Read implements io.Reader.
func (r *repeated) Read(into []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := copy(into[:min(len(into), r.left)], r.block[r.at:])
	r.at, r.left = (r.at+n)%len(r.block), r.left-n
	return n, nil
}

// ready is the ReadyForQuery with which the answer to a statement outside a transaction ends. No row has a Z.
var ready = []byte{'Z', 0, 0, 0, 5, 'I'}

// receive sends a query and reads the bytes of its answer, of which there have to be atLeast. It does not look
// at single messages, which would make the client the bottleneck.
func receive(ctx context.Context, conn *pgconn.PgConn, sql string, atLeast int) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Conn().SetDeadline(time.Now()) })
	defer stop()
	conn.Frontend().Send(&pgproto3.Query{String: sql})
	if err := conn.Frontend().Flush(); err != nil {
		return err
	}
	buf := make([]byte, 256<<10)
	var end []byte // the last bytes so far
	for n := 0; ; {
		got, err := conn.Conn().Read(buf)
		if err != nil {
			return err
		}
		n += got
		end = append(end, buf[max(0, got-len(ready)):got]...)
		if end = end[max(0, len(end)-len(ready)):]; !bytes.Equal(end, ready) {
			continue
		}
		if n < atLeast {
			return fmt.Errorf("the answer has %d bytes instead of %d: %q", n, atLeast, buf[:min(got, 300)])
		}
		return nil
	}
}
