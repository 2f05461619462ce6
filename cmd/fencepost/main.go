// Command fencepost is a proxy for PostgreSQL that lets a worker write only
// while it holds the highest epoch of its resource.
//
// There is one file per command. Package service wires together what a proxy is made of.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/fencepost/fencepost/cmd/fencepost/completion"
	"github.com/fencepost/fencepost/internal/audit/evidence"
	"github.com/fencepost/fencepost/internal/doctor"
	"github.com/fencepost/fencepost/internal/logqueue"
)

// Exit codes. Scripts may rely on them.
const (
	exitOK      = 0
	exitFailure = 1 // the command failed
	exitUsage   = 2 // the command line or the configuration is wrong, or doctor could not look
	exitUnsure  = 3 // audit --verify found nothing, but could not verify everything
	// exitConfig is exitUsage of serve. Go's runtime exits with 2 after a panic, and a supervisor is to
	// restart a proxy that has panicked, but not one that cannot start. (It is EX_CONFIG of sysexits.h.)
	exitConfig = 78
)

// terminal is a command's standard streams and environment. It lets tests run commands
// in-process.
type terminal struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	getenv func(string) string
	// environ returns all variables, each name=value.
	environ func() []string
	// flags, if not nil, is given the flags of a command, which then does nothing else.
	flags func(fs *flag.FlagSet)
}

// results is the standard output of a command. It remembers whether some of it was lost, as on a full
// disk, so that a command whose result cannot be seen does not report success.
type results struct {
	to io.Writer

	mu struct {
		sync.Mutex
		lost error // of the first Write that failed
	}
}

func (r *results) Write(p []byte) (int, error) {
	n, err := r.to.Write(p)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.mu.lost == nil {
			r.mu.lost = err
		}
	}
	return n, err
}

// lost returns why some of the output was lost, nil if none was.
func (r *results) lost() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.lost
}

// command is one subcommand.
type command struct {
	name string
	// args are the arguments in the usage line. A command with actions begins with them,
	// separated by " | ".
	args    string
	summary string
	hidden  bool
	run     func(ctx context.Context, t terminal, args []string) error
}

func commands() []command {
	return []command{
		{name: "serve", args: "--config FILE", summary: "run the proxy", run: runServe},
		{name: "migrate", args: "--dsn DSN", summary: "create or update the fencepost schema in one database", run: runMigrate},
		{name: "reload", args: "[--admin ADDRESS]", summary: "make a running proxy read its configuration again", run: runReload},
		{name: "status", args: "[--admin ADDRESS | --dsn DSN]", summary: "show resources, leaders, epochs", run: runStatus},
		{name: "wait", args: "[--admin ADDRESS] [--timeout DURATION]", summary: "wait until a running proxy can serve", run: runWait},
		{name: "clients", args: "[--admin ADDRESS]", summary: "show the clients of a running proxy", run: runClients},
		{name: "shadow", args: "report [--admin ADDRESS]", summary: "say whether a resource in shadow is safe to enforce", run: runShadow},
		{name: "doctor", args: "[--config FILE] [--dsn DSN]", summary: "say what is wrong or risky in an installation", run: runDoctor},
		{name: "resource", args: "list | rm RESOURCE", summary: "show or remove the resources of a database", run: runResource},
		{name: "evict", args: "RESOURCE [--worker WORKER]", summary: "take the lead from a worker", run: runEvict},
		{name: "handover", args: "RESOURCE --to WORKER", summary: "let a worker of your choice lead next", run: runHandover},
		{name: "pause", args: "RESOURCE", summary: "stop everyone from leading a resource", run: runPause},
		{name: "resume", args: "RESOURCE", summary: "allow a paused resource to be led again", run: runResume},
		{name: "orders", args: "[--resource NAME]", summary: "show what operators have ordered, when and why", run: runOrders},
		{name: "ledger", args: "prune --keep 90d", summary: "delete old grants from the ledger", run: runLedger},
		{name: "audit", args: "[--verify] --dsn DSN", summary: "show who led when and what was refused, or verify the rows of stamped tables", run: runAudit},
		{name: "guard", args: "add | list | remove --table TABLE", summary: "let only the leader write a table, whatever path its writes take", run: runGuard},
		{name: "generation", args: "bump --config FILE", summary: "accept a lease service that was rebuilt or restored", run: runGeneration},
		{name: "raft", args: "bootstrap | add | remove NODE | status", summary: "manage the proxies that are nodes of election.provider raft", run: runRaft},
		{name: "explain", args: "SQL", summary: "show who may run each statement of a text", run: runExplain},
		{name: "explain-route", args: "--user USER --client IP", summary: "show which route a connection would get, and why", run: runExplainRoute},
		{name: "completion", args: "bash | zsh | fish", summary: "print a script by which a shell completes commands", run: runCompletion},
		{name: "man", summary: "print the manual page", run: runMan},
		{name: "version", summary: "print the version", run: runVersion},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the default action is restored, so that a second signal
	// ends a process that hangs while draining.
	context.AfterFunc(ctx, stop)
	t := terminal{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, environ: os.Environ}
	code := run(ctx, t, os.Args[1:])
	stop()
	os.Exit(code)
}

// wrongUsage returns the exit code after a usageError.
func (c command) wrongUsage() int {
	if c.name == "serve" {
		return exitConfig
	}
	return exitUsage
}

// usageError is a mistake in the command line or the configuration.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// run runs one subcommand and returns the exit code.
func run(ctx context.Context, t terminal, args []string) int {
	if len(args) == 0 {
		printUsage(t.stderr)
		return exitUsage
	}
	name, rest := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		if len(rest) == 0 {
			printUsage(t.stdout)
			return exitOK
		}
		name, rest = rest[0], []string{"--help"}
	case "-version", "--version":
		name = "version"
	}
	for _, c := range commands() {
		if c.name == name {
			out := &results{to: t.stdout}
			t.stdout = out
			err := c.run(ctx, t, rest)
			if lost := out.lost(); lost != nil && (err == nil || errors.Is(err, flag.ErrHelp)) {
				err = fmt.Errorf("some of the output was lost: %w", lost)
			}
			return exitCode(t, c, err)
		}
	}
	fmt.Fprintf(t.stderr, "fencepost: unknown command %q\n\n", name)
	printUsage(t.stderr)
	return exitUsage
}

func exitCode(t terminal, c command, err error) int {
	var usage usageError
	var blind *doctor.BlindError
	var unverified *evidence.UnverifiedError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, logqueue.ErrStalled): // standard error accepts nothing
		return exitFailure
	case errors.As(err, &blind):
		fmt.Fprintf(t.stderr, "fencepost %s: %v\n", c.name, err)
		return exitUsage
	case errors.As(err, &unverified):
		fmt.Fprintf(t.stderr, "fencepost %s: %v\n", c.name, err)
		return exitUnsure
	case errors.As(err, &usage):
		fmt.Fprintf(t.stderr, "fencepost %s: %v\nRun fencepost %s --help for usage.\n", c.name, err, c.name)
		return c.wrongUsage()
	default:
		fmt.Fprintf(t.stderr, "fencepost %s: %v\n", c.name, err)
		return exitFailure
	}
}

// usageBegins and usageEnds stand around the list of the commands.
const (
	usageBegins = `Fencepost is a proxy for PostgreSQL that refuses the writes of workers that have
been superseded.
`
	usageEnds = `Run fencepost COMMAND --help for the usage of a command.
Exit codes: 0 success, 1 failure, 2 wrong command line or configuration (78 if the
command is serve), 3 not everything could be verified (audit --verify).
`
)

func printUsage(w io.Writer) {
	fmt.Fprint(w, usageBegins, "\nUsage:\n")
	for _, c := range commands() {
		if !c.hidden {
			fmt.Fprintf(w, "  fencepost %-38s %s\n", c.usage(), c.summary)
		}
	}
	fmt.Fprint(w, "\n", usageEnds)
}

// usage returns the command with its arguments.
func (c command) usage() string { return strings.TrimSpace(c.name + " " + c.args) }

// parseFlags parses args into fs, whose usage text is about, and allows at most maxArgs
// arguments after the flags. Its error is a usageError or flag.ErrHelp. If somebody only asks
// for the flags (terminal.flags), it gives them fs, and parses nothing.
func parseFlags(t terminal, fs *flag.FlagSet, about string, args []string, maxArgs int) error {
	if t.flags != nil {
		t.flags(fs)
		return flag.ErrHelp
	}
	fs.SetOutput(io.Discard)
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(t.stdout, "%s\n", strings.TrimSpace(about))
		printFlags(t.stdout, fs)
		return err
	case err != nil:
		return usageError{err.Error()}
	case fs.NArg() > maxArgs:
		return usagef("unexpected argument %q", fs.Arg(maxArgs))
	}
	return refuseEmpty(fs)
}

// refuseEmpty refuses a flag with an empty value, which is that of a variable that is not
// set: fencepost evict --worker "$W" must not take the lead from whoever has it. An empty
// --config means none.
func refuseEmpty(fs *flag.FlagSet) (err error) {
	fs.Visit(func(f *flag.Flag) {
		if f.Value.String() == "" && f.Name != "config" {
			err = usagef("--%s is empty: give a value, or leave it out", f.Name)
		}
	})
	return err
}

func printFlags(w io.Writer, fs *flag.FlagSet) {
	first := true
	fs.VisitAll(func(f *flag.Flag) {
		if first {
			fmt.Fprint(w, "\nFlags:\n")
			first = false
		}
		placeholder, text := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "  --%-24s %s", strings.TrimSpace(f.Name+" "+placeholder), text)
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(w, " (default %s)", f.DefValue)
		}
		fmt.Fprintln(w)
	})
}

const completionAbout = `
Usage: fencepost completion bash | zsh | fish

Prints a script by which the shell completes the commands and flags of fencepost. For
bash: source <(fencepost completion bash), or write it to a file of bash-completion.`

func runCompletion(ctx context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("completion", flag.ContinueOnError)
	if err := parseFlags(t, fs, completionAbout, args, 1); err != nil {
		return err
	}
	script, ok := completion.Script(fs.Arg(0), program(ctx))
	if !ok {
		return usagef("the shell is %q: use one of %s", fs.Arg(0), strings.Join(completion.Shells(), ", "))
	}
	_, err := io.WriteString(t.stdout, script)
	return err
}

// program lists the commands that are not hidden, and asks each for its flags.
func program(ctx context.Context) completion.Program {
	p := completion.Program{Name: "fencepost"}
	for _, c := range commands() {
		if c.hidden {
			continue
		}
		for _, action := range c.actions() {
			of := completion.Command{Name: c.name, Action: action, Summary: c.summary}
			asked := terminal{getenv: func(string) string { return "" }, flags: func(fs *flag.FlagSet) { of.Flags = completion.Flags(fs) }}
			_ = c.run(ctx, asked, strings.Fields(action)) // always flag.ErrHelp
			p.Commands = append(p.Commands, of)
		}
	}
	return p
}

// actions returns what the first argument may be, or one empty text if that is free.
func (c command) actions() []string {
	var actions []string
	for _, alternative := range strings.Split(c.args, " | ") {
		word, _, _ := strings.Cut(alternative, " ")
		if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyz") == "" {
			actions = append(actions, word)
		}
	}
	if len(actions) == 0 {
		return []string{""}
	}
	return actions
}

// version is set by the linker (see the Makefile).
var version = ""

func runVersion(_ context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("version", flag.ContinueOnError)
	if err := parseFlags(t, fs, "Usage: fencepost version\n\nPrints the version of this program.", args, 0); err != nil {
		return err
	}
	fmt.Fprintf(t.stdout, "fencepost %s %s %s/%s\n", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}

// versionText is the version the linker set, else what the module system knows.
func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}
