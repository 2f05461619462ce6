// Command drivers runs the Go drivers: see the package drivers for what it does.
//
//	drivers pgx|libpq scenarios|follower|stale|stale_transaction|pool
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// patience bounds one scenario. It is less than the test gives this program, so that what does not end is named.
const patience = 100 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: drivers pgx|libpq PART")
	}
	switch args[0] {
	case "pgx":
		return runPgx(args[1])
	case "libpq":
		return runPq(args[1])
	}
	return fmt.Errorf("unknown driver %q", args[0])
}

// fields is a JSON object.
type fields map[string]any

// printLine prints the result of a scenario.
func printLine(line fields) {
	text, err := json.Marshal(line)
	if err != nil {
		text = fmt.Appendf(nil, `{"failed":%q}`, err.Error())
	}
	fmt.Println(string(text))
}

// outcome is the outcome of a scenario: result is the same for every driver, detail is
// specific to this driver.
type outcome struct{ result, detail fields }

// report runs a scenario and prints its line.
func report(name string, scenario func(context.Context) (outcome, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o, err := scenario(ctx)
	line := fields{"scenario": name, "result": o.result, "detail": o.detail}
	if err != nil {
		line["failed"] = err.Error()
	}
	printLine(line)
}

// lacks reports that the driver does not support a scenario.
func lacks(name, why string) { printLine(fields{"scenario": name, "lacks": why}) }

// input is read only by the main goroutine.
var input = bufio.NewReader(os.Stdin)

// waitToBeSuperseded reports that the program has read, and waits until it may
// continue.
func waitToBeSuperseded() error {
	printLine(fields{"ready": true})
	if _, err := input.ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the line to continue: %w", err)
	}
	return nil
}

// The statements that several scenarios use.
const (
	insertTyped = `INSERT INTO typed (i4, i8, num, txt, yes, raw, at, doc, list, uid, nothing)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
		RETURNING i4, i8, num, txt, yes, raw, at, doc, list, uid, nothing`
	addBalance    = "UPDATE account SET balance = balance + $1 WHERE id = $2 RETURNING balance"
	setBalance    = "UPDATE account SET balance = $1 WHERE id = $2"
	readBalance   = "SELECT balance FROM account WHERE id = $1"
	insertEvent   = "INSERT INTO event (what) VALUES ($1)"
	countEvents   = "SELECT count(*) FROM event"
	duplicate     = "INSERT INTO account VALUES (1, 1)"
	countAccounts = "SELECT count(*) FROM account"
	sleeping      = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
	slowUpdate    = "UPDATE account SET balance = 0 FROM pg_sleep(60) WHERE id = 1"
)

// Values of the scenario types. The text contains characters that break careless
// quoting.
const (
	someText  = "héllo; -- '$1"
	someUUID  = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
	someInt64 = 9007199254740993 // the first that a double cannot represent
)

var someTime = time.Date(2020, 2, 3, 4, 5, 6, 789_000_000, time.UTC)

const millis = "2006-01-02T15:04:05.000Z"
