package differential

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/internal/wiretest"
)

// difference says where Fencepost's output differs from Postgres' output, "" if it does
// not.
func difference(want, got *outcome) (string, error) {
	d, tolerated := saidOtherwise(want, got)
	switch {
	case tolerated: // the messages that the script waits for need not arrive
		return "", nil
	case d != "":
		return d + got.stuck, nil
	}
	if w, g := lines(want.others), lines(got.others); !slices.Equal(w, g) {
		return fmt.Sprintf("of other sessions it is notified otherwise:\nPostgres: %q\nFencepost: %q%s", w, g, got.stuck), nil
	}
	if !slices.Equal(want.heard, got.heard) {
		return fmt.Sprintf("other sessions are notified otherwise:\nPostgres: %q\nFencepost: %q", want.heard, got.heard), nil
	}
	if want.end == "" && got.end != "" {
		return "the connection ends otherwise: " + got.end + got.stuck, nil
	}
	return wroteOtherwise(want, got)
}

// isCancelled reports whether a line is the error of a statement that was cancelled, for whatever cause.
func isCancelled(line string) bool {
	return strings.HasPrefix(line, `ErrorResponse ERROR 57014 "canceling statement due to `)
}

// wroteOtherwise compares the databases.
func wroteOtherwise(want, got *outcome) (string, error) {
	if want.in != got.in && (want.contents.rows == nil || got.contents.rows == nil) {
		for _, o := range []*outcome{want, got} {
			if err := o.in.lookAtAll(); err != nil {
				return "", err
			}
			o.contents = o.in.now
		}
	}
	if want.contents.like(got.contents) {
		return "", nil
	}
	return "the database differs:\nPostgres:\n" + want.contents.String() + "\nFencepost:\n" + got.contents.String(), nil
}

// isLost reports whether a line ends a session of which Fencepost does not know which replies are due. Such a client has
// sent a Query or a FunctionCall among messages of the extended protocol without a Sync, or messages other than COPY data
// during a COPY, and behind them a text that mentions Fencepost.
func isLost(line string) bool {
	return strings.HasPrefix(line, `ErrorResponse FATAL 08P01 "a statement for Fencepost follows messages in an order`)
}

// losesCopy reports whether both end a session that sends a Query or Parse among COPY data: Postgres because of that
// message, and Fencepost because of its text, which mentions Fencepost.
func losesCopy(want, got string) bool {
	return strings.HasPrefix(want, `ErrorResponse ERROR 08P01 "unexpected message type 0x5`) && strings.HasPrefix(got, `ErrorResponse ERROR 08006 "unexpected EOF on client connection`)
}

// refusesUnread reports whether both refuse a text: Postgres because of its syntax, and Fencepost because it cannot read
// the text, which has the words of PREPARE TRANSACTION. In a block that has failed, it lets Postgres say so.
func refusesUnread(want, got string) bool {
	return strings.HasPrefix(want, "ErrorResponse ERROR 42601 ") &&
		(strings.HasPrefix(got, `ErrorResponse ERROR ZF005 "two-phase commit cannot be fenced`) || strings.HasPrefix(got, "ErrorResponse ERROR 25P02 "))
}

// saysOtherwise says that the message of an index differs.
const saysOtherwise = "message %d:\n  Postgres  %s\n  Fencepost %s"

// saidOtherwise compares the transcripts. tolerated means that they differ in a known
// way, so that what follows cannot be compared.
func saidOtherwise(want, got *outcome) (diff string, tolerated bool) {
	if slices.EqualFunc(want.all, got.all, func(a, b wiretest.Message) bool { return a.Type == b.Type && bytes.Equal(a.Body, b.Body) }) {
		return "", false
	}
	w, g := lines(want.all), lines(got.all)
	for i := range max(len(w), len(g)) {
		switch {
		case (i >= min(len(w), len(g)) || w[i] != g[i]) && len(g) > 0 && isLost(g[len(g)-1]):
			return "", true
		case i == len(w) && want.end == "broken off":
			// Postgres closed the connection with unread bytes of the client, and the
			// resulting reset may overtake its last messages.
			return "", true
		case i >= len(w):
			return fmt.Sprintf("Fencepost goes on with\n  %s", g[i]), false
		case i >= len(g):
			return fmt.Sprintf("Fencepost leaves out\n  %s\n  (its end: %q)", w[i], got.end), false
		case g[i] != w[i] && isCancelled(g[i]) && isCancelled(w[i]):
			// Whether a cancel request or the statement_timeout comes first depends on time.
			return "", true
		case w[i] != g[i] && !refusesUnread(w[i], g[i]) && !losesCopy(w[i], g[i]):
			return fmt.Sprintf(saysOtherwise, i, w[i], g[i]), false
		}
	}
	return "", false
}
