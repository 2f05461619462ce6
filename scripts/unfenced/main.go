// Command unfenced runs the safety tests with the check disabled, and requires every
// one of them to fail. A safety test that passes without the fence proves nothing about
// the fence.
//
//	go run ./scripts/unfenced ./...
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

const (
	// safety is the pattern of the names of safety tests.
	safety = "^TestSafety"
	// others are the parts that run on another server or with another lease service than the default one, too.
	// The check depends on neither, so that without it they fail like the part that is left.
	others = "/^(18|consul|etcd|raft|redis|zookeeper)$"
	// switchOff is the environment variable by which test code disables the check. The
	// program itself does not know it.
	switchOff = "FENCEPOST_TEST_UNFENCED=1"
	// buildTag builds a proxy that checks nothing: see fencing.Checking.
	buildTag = "fencepost_unfenced"
	// refusal is what the program prints if it refuses to serve in that build. A test
	// that fails because of that proves nothing.
	refusal = "this build fences nothing"
	// atLeast guards against a renaming that leaves nothing to run.
	atLeast = 10
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "unfenced:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, patterns []string, out io.Writer) error {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	res := newResults()
	packages, err := safetyTests(ctx, patterns, res.expect)
	if err != nil {
		return err
	}
	args := append([]string{"test", "-json", "-count=1", "-vet=off", "-tags=" + buildTag, "-p=3", "-parallel=6", "-timeout=40m", "-run=" + safety, "-skip=" + others}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), switchOff)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("open a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go test: %w", err)
	}
	readErr := res.read(stdout, out)
	// go test exits with 1 when tests fail, which is expected here.
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("run go test: %w", err)
	}
	if readErr != nil {
		return readErr
	}
	return res.verdict(out)
}

// safetyTest matches a safety test in a file.
var safetyTest = regexp.MustCompile(`(?m)^func (TestSafety\w*)\(`)

// safetyTests returns the import paths of the packages whose test files contain safety
// tests, so that nothing else is compiled, and passes the name of each test to found.
func safetyTests(ctx context.Context, patterns []string, found func(pkg, name string)) ([]string, error) {
	format := `{{$d := .Dir}}{{$p := .ImportPath}}{{range .TestGoFiles}}{{$p}} {{$d}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$p}} {{$d}}/{{.}}{{"\n"}}{{end}}`
	out, err := goOutput(ctx, append([]string{"list", "-tags=" + buildTag, "-f", format}, patterns...)...)
	if err != nil {
		return nil, err
	}
	var packages []string
	for line := range strings.Lines(out) {
		pkg, file, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("look for safety tests: %w", err)
		}
		for _, m := range safetyTest.FindAllSubmatch(text, -1) {
			found(pkg, string(m[1]))
			if !slices.Contains(packages, pkg) {
				packages = append(packages, pkg)
			}
		}
	}
	if len(packages) == 0 {
		return nil, errors.New("found no safety tests")
	}
	return packages, nil
}

func goOutput(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		os.Stderr.Write(out)
		return "", fmt.Errorf("run go %s: %w", args[0], err)
	}
	return string(out), nil
}

// event is a line of go test -json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// results are the results of the safety tests.
type results struct {
	order  []string
	action map[string]string // "pass", "fail", "skip"; "" if it did not end
	output map[string]string
}

func newResults() *results {
	return &results{action: map[string]string{}, output: map[string]string{}}
}

func (r *results) expect(pkg, name string) {
	key := pkg + "." + name
	r.order = append(r.order, key)
	r.action[key] = ""
}

// read processes the events of go test and prints a line per test.
func (r *results) read(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(out, lines.Text())
			continue
		}
		top, _, _ := strings.Cut(e.Test, "/")
		key := e.Package + "." + top
		switch {
		case e.Action == "build-output":
			fmt.Fprint(out, e.Output)
		case e.Action == "output":
			r.output[key] += e.Output
		case e.Test == top && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") && top != "":
			r.action[key] = e.Action
			if e.Action == "fail" {
				fmt.Fprintf(out, "fails, as it must: %s: %s\n", key, r.reason(key))
			}
		}
	}
	return lines.Err()
}

// report matches a line that a test or its fixture reports, with its file and line.
var report = regexp.MustCompile(`(?m)^\s+\w+\.go:(\d+: .*)`)

// reason returns the first line that the test reported.
func (r *results) reason(key string) string {
	if m := report.FindStringSubmatch(r.output[key]); m != nil {
		return m[1]
	}
	return ""
}

// verdict returns nil if each expected test ran to its end and failed with its own
// assertion: a panic, a timeout or a server that did not start proves nothing.
func (r *results) verdict(out io.Writer) error {
	var bad int
	complain := func(format string, args ...any) {
		bad++
		fmt.Fprintf(out, format+"\n", args...)
	}
	for _, key := range r.order {
		switch {
		case r.action[key] == "pass":
			complain("PASSES WITHOUT THE CHECK: %s", key)
		case r.action[key] != "fail":
			complain("DID NOT RUN TO ITS END: %s\n%s", key, r.output[key])
		case r.reason(key) == "":
			complain("FAILED, BUT NOT BY AN ASSERTION: %s\n%s", key, r.output[key])
		case strings.Contains(r.output[key], refusal):
			complain("FAILED BECAUSE THE PROGRAM DID NOT SERVE: %s\n%s", key, r.output[key])
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d safety tests do not prove that the check is needed", bad, len(r.order))
	}
	if len(r.order) < atLeast {
		return fmt.Errorf("found only %d safety tests, expected at least %d", len(r.order), atLeast)
	}
	fmt.Fprintf(out, "unfenced: %d safety tests fail without the check, as they must\n", len(r.order))
	return nil
}
