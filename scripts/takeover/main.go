// Command takeover measures how long a takeover takes with each lease service, and writes the
// table and the picture of docs/electors.md.
//
//	go run ./scripts/takeover -times 20
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

const (
	page    = "docs/electors.md"
	picture = "docs/takeover.svg"
	// begin and end enclose what is written into the page.
	begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
)

func main() {
	times := flag.Int("times", 20, "takeovers of each kind with each lease service")
	read := flag.String("read", "", "`file` with the output of such a benchmark, instead of running it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *times, *read); err != nil {
		fmt.Fprintln(os.Stderr, "takeover:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, times int, file string) error {
	args := []string{"test", "./test/system", "-tags", "kubernetes", "-run", "XXX", "-bench", "Takeover", "-benchtime", fmt.Sprint(times, "x"), "-timeout", "2h"}
	output, err := measure(ctx, args, file)
	if err != nil {
		return err
	}
	all, err := parse(output)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	how := fmt.Sprintf("%d takeovers of each kind, on %d processors (`go %s`).", all.times, runtime.NumCPU(), strings.Join(args, " "))
	written, err := insert(string(text), how+"\n\n"+all.table())
	if err != nil {
		return err
	}
	if err := os.WriteFile(page, []byte(written), 0o644); err != nil {
		return err
	}
	return os.WriteFile(picture, []byte(all.picture()), 0o644)
}

// measure returns the output of the benchmark.
func measure(ctx context.Context, args []string, file string) (string, error) {
	if file != "" {
		text, err := os.ReadFile(file)
		return string(text), err
	}
	var out strings.Builder
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, &out), os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run go %s: %w", strings.Join(args, " "), err)
	}
	return out.String(), nil
}

// insert replaces what stands between the marks of the page.
func insert(page, text string) (string, error) {
	before, rest, found := strings.Cut(page, begin)
	_, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		return "", errors.New("the page has no place for what was measured")
	}
	return before + begin + text + end + after, nil
}
