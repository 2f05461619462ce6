package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/redistest"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, etcdtest.StopShared, redistest.StopShared, zookeepertest.StopShared)
}

// output is the output of a command.
type output struct {
	code           int
	stdout, stderr string
}

// runCommand runs the program in-process with the given environment.
func runCommand(t *testing.T, env map[string]string, args ...string) output {
	t.Helper()
	return runCommandWith(t, "select 2", env, args...)
}

// runCommandWith is runCommand with this standard input.
func runCommandWith(t *testing.T, stdin string, env map[string]string, args ...string) output {
	t.Helper()
	var stdout, stderr bytes.Buffer
	term := terminal{stdin: strings.NewReader(stdin), stdout: &stdout, stderr: &stderr,
		getenv: func(name string) string { return env[name] },
		environ: func() (list []string) {
			for name, value := range env {
				list = append(list, name+"="+value)
			}
			return list
		}}
	code := run(context.Background(), term, args)
	return output{code, stdout.String(), stderr.String()}
}

func TestExitCodesAndUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		args []string
		code int
		want string // in either stream
	}{
		{"nothing", nil, exitUsage, "Usage:"},
		{"unknown command", []string{"serv"}, exitUsage, `unknown command "serv"`},
		{"help", []string{"help"}, exitOK, "fencepost serve"},
		{"--help", []string{"--help"}, exitOK, "Exit codes:"},
		{"help of a command", []string{"help", "migrate"}, exitOK, "per database"},
		{"version", []string{"version"}, exitOK, "fencepost "},
		{"--version", []string{"--version"}, exitOK, "fencepost "},
		{"unknown flag", []string{"serve", "--confg", "x"}, exitConfig, "fencepost serve --help"},
		{"extra argument", []string{"version", "x"}, exitUsage, `unexpected argument "x"`},
		{"missing file", []string{"serve", "--config", "/nowhere/fencepost.yml"}, exitConfig, "read the configuration"},
		{"migrate without a DSN", []string{"migrate"}, exitUsage, "--dsn is required"},
		{"migrate with a broken DSN", []string{"migrate", "--dsn", "postgres://u:secret@h:port/d"}, exitUsage, "fencepost migrate:"},
		{"status of nobody", []string{"status", "--admin", "127.0.0.1:1"}, exitFailure, "admin address"},
		{"generation without a verb", []string{"generation"}, exitUsage, "bump"},
		{"explain without a text", []string{"explain"}, exitUsage, "no SQL text given"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out := runCommand(t, nil, c.args...)
			if out.code != c.code {
				t.Errorf("exit code %d, want %d", out.code, c.code)
			}
			if !strings.Contains(out.stdout+out.stderr, c.want) {
				t.Errorf("output does not contain %q:\n%s%s", c.want, out.stdout, out.stderr)
			}
			if strings.Contains(out.stdout+out.stderr, "secret") {
				t.Errorf("the output shows a password:\n%s%s", out.stdout, out.stderr)
			}
		})
	}
}

// TestLostOutputIsAFailure: a command whose output goes nowhere does not exit with 0.
func TestLostOutputIsAFailure(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"explain", "SELECT 1"}, {"migrate", "--help"}} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer full.Close()
		var said bytes.Buffer
		none := func(string) string { return "" }
		code := run(t.Context(), terminal{stdin: strings.NewReader(""), stdout: full, stderr: &said, getenv: none, environ: func() []string { return nil }}, args)
		if code != exitFailure || !strings.Contains(said.String(), "output was lost") || !strings.Contains(said.String(), "no space left") {
			t.Errorf("%v: exit code %d, want %d: %s", args, code, exitFailure, said.String())
		}
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	for _, c := range commands() {
		out := runCommand(t, map[string]string{"FENCEPOST_DSN": "postgres://u:secret@h/d"}, c.name, "--help")
		if out.code != exitOK || !strings.Contains(out.stdout, "Usage: fencepost "+c.name) {
			t.Errorf("%s --help: exit code %d, output %q %q", c.name, out.code, out.stdout, out.stderr)
		}
		if strings.Contains(out.stdout, "secret") {
			t.Errorf("%s --help shows a password", c.name)
		}
		listed := strings.Contains(runCommand(t, nil, "help").stdout, "fencepost "+c.name+" ")
		if listed == c.hidden {
			t.Errorf("%s: listed %v, hidden %v", c.name, listed, c.hidden)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	out := runCommand(t, nil, "explain", "BEGIN; UPDATE t SET x = 1; VACUUM t")
	for _, want := range []string{"kind    begin", "leader  runs", "reader  refused by Postgres", "reader  refused before it is sent"} {
		if !strings.Contains(out.stdout, want) {
			t.Errorf("explain does not say %q:\n%s", want, out.stdout)
		}
	}
	if out := runCommand(t, nil, "explain", "-"); !strings.Contains(out.stdout, "select 2") || !strings.Contains(out.stdout, "for a read") {
		t.Errorf("explain of standard input: %s", out.stdout)
	}
	if out := runCommand(t, nil, "explain", "  "); !strings.Contains(out.stdout, "no statement") {
		t.Errorf("explain of nothing: %s", out.stdout)
	}
}

func TestExplainAsksTheDatabaseWhatIsProven(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.EmptyDatabase(t)
	s.Exec(t, pgtest.Superuser, db, "CREATE TABLE bills (id int)", "CREATE VIEW late AS SELECT 1")
	const sql = "SELECT count(*) FROM bills; SELECT * FROM late; DELETE FROM bills"
	out := runCommand(t, nil, "explain", "--dsn", s.DSN(pgtest.App, db), sql)
	if out.code != exitOK {
		t.Fatalf("exit code %d: %s", out.code, out.stderr)
	}
	for _, want := range []string{"it is proven harmless", "refused before it is sent: relation late is a view", "taken   for a write"} {
		if !strings.Contains(out.stdout, want) {
			t.Errorf("explain does not say %q:\n%s", want, out.stdout)
		}
	}
	if out := runCommand(t, nil, "explain", sql); out.code != exitOK || strings.Contains(out.stdout, "proven harmless") {
		t.Errorf("without a database (exit code %d) it says what is proven:\n%s", out.code, out.stdout)
	}
	if out := runCommand(t, nil, "explain", "--dsn", "postgres://127.0.0.1:1/nowhere", sql); out.code != exitFailure {
		t.Errorf("exit code %d when the database cannot be reached", out.code)
	}
}

func TestDoctorSaysWhatItFound(t *testing.T) {
	t.Parallel()
	sound := pgtest.Start(t, pgtest.WithConfig(map[string]string{"fsync": "on", "full_page_writes": "on"}))
	fast := pgtest.Shared(t)
	soundDB, fastDB := sound.Database(t), fast.Database(t)
	env := func(s *pgtest.Server, more ...string) map[string]string {
		all := map[string]string{"FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_LIMITS_MAX_CONNECTIONS": "10"}
		for i := 0; i+1 < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	consul := []string{"FENCEPOST_ELECTION_PROVIDER", "consul", "FENCEPOST_ELECTION_CONSUL_ADDRESS"}
	agent := consultest.Start(t, consultest.WithDefaultTTL()).Addr()
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		code int
		want string // in either stream
	}{
		"nothing":              {env(sound), []string{"--database", soundDB}, exitOK, "no findings"},
		"findings":             {env(fast), []string{"--database", fastDB}, exitFailure, "error: fsync-off (Postgres)"},
		"by DSN only":          {nil, []string{"--dsn", fast.DSN(pgtest.Superuser, fastDB)}, exitFailure, "give --config too"},
		"a DSN of nowhere":     {nil, []string{"--dsn", "postgres://u:secret@127.0.0.1:1/d"}, exitUsage, "failed: connect to the database"},
		"a broken DSN":         {nil, []string{"--dsn", "postgres://u:secret@h:port/d"}, exitUsage, "Run fencepost doctor --help"},
		"DSN and database":     {nil, []string{"--dsn", "postgres://h/d", "--database", "d"}, exitUsage, "mutually exclusive"},
		"no such file":         {nil, []string{"--config", "/nowhere/fencepost.yml"}, exitUsage, "read the configuration"},
		"a role without right": {nil, []string{"--dsn", fast.DSN(pgtest.App, fastDB)}, exitUsage, "the control role or a superuser may"},
		"no Consul":            {env(sound, append(consul, "127.0.0.1:1")...), []string{"--database", soundDB}, exitFailure, "error: lease-service"},
		"a TTL below Consul's": {env(sound, append(consul, agent, "FENCEPOST_LEASE_TTL", "5s")...), []string{"--database", soundDB}, exitFailure, "error: lease-ttl"},
		"Consul":               {env(sound, append(consul, agent)...), []string{"--database", soundDB}, exitOK, "no findings"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := runCommand(t, c.env, append([]string{"doctor"}, c.args...)...)
			if out.code != c.code || !strings.Contains(out.stdout+out.stderr, c.want) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s%s", out.code, c.code, c.want, out.stdout, out.stderr)
			}
			if strings.Contains(out.stdout+out.stderr, "secret") {
				t.Errorf("the output shows a password:\n%s%s", out.stdout, out.stderr)
			}
		})
	}
	out := runCommand(t, env(fast), "doctor", "--json", "--database", fastDB)
	var report struct {
		Findings        []struct{ Severity, ID, Where, Seen, Why, Do string }
		Notes, Failures []string
	}
	if err := json.Unmarshal([]byte(out.stdout), &report); err != nil || len(report.Findings) < 2 || report.Findings[0].ID != "fsync-off" || report.Findings[0].Do == "" {
		t.Errorf("%v in %s%s", err, out.stdout, out.stderr)
	}
}

// TestBashCompletes asks bash, with the script, as it asks at a TAB.
func TestBashCompletes(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "fencepost.bash")
	if err := os.WriteFile(script, []byte(runCommand(t, nil, "completion", "bash").stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"fencepost st":                        "status",
		"fencepost re":                        "reload resource resume",
		"fencepost help mig":                  "migrate",
		"fencepost completion b":              "bash",
		"fencepost resource ":                 "list rm --help",
		"fencepost resource l":                "list",
		"fencepost resource list --":          "--at --config --database --dsn --help",
		"fencepost resource rm --f":           "--force",
		"fencepost ledger p":                  "prune",
		"fencepost generation bump --re":      "--restored",
		"fencepost status --re":               "--ready --resource",
		"fencepost status --resource ":        "", // a value
		"fencepost status --json --re":        "--ready --resource",
		"fencepost serve --config main_t":     "main_test.go",
		"fencepost serve --config = main_t":   "main_test.go", // --config=main_t, as bash splits it
		"fencepost evict billing --wor":       "--worker",
		"fencepost doctor --database shop --": "--config --database --dsn --json --help",
	} {
		cmd := exec.Command("bash", "-c", `source "$1"; COMP_WORDS=($2); [[ $2 == *' ' ]] && COMP_WORDS+=(''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
			_fencepost; echo "${COMPREPLY[*]}"`, "bash", script, line)
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q completes to %q (%v), want %q", line, got, err, want)
		}
	}
}

// TestCompletionsHaveAllCommandsAndFlags: what a command says in its help, it completes.
func TestCompletionsHaveAllCommandsAndFlags(t *testing.T) {
	t.Parallel()
	scripts := map[string]string{}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		scripts[shell] = runCommand(t, nil, "completion", shell).stdout
	}
	for _, c := range commands() {
		if c.hidden {
			continue
		}
		help := runCommand(t, nil, c.name, "--help").stdout
		var flags []string
		for line := range strings.Lines(help) {
			if name, ok := strings.CutPrefix(line, "  --"); ok {
				flags = append(flags, strings.Fields(name)[0])
			}
		}
		for shell, script := range scripts {
			lines := slices.DeleteFunc(strings.Split(script, "\n"), func(l string) bool { return !strings.Contains(l, c.name) })
			if len(lines) == 0 {
				t.Errorf("%s does not complete %s", shell, c.name)
			}
			for _, f := range flags {
				if text := strings.Join(lines, "\n"); shell != "zsh" && !strings.Contains(text, "-l "+f+" ") && !strings.Contains(text, "--"+f) || !strings.Contains(script, f) {
					t.Errorf("%s does not complete --%s of %s", shell, f, c.name)
				}
			}
		}
	}
	if out := runCommand(t, nil, "completion", "csh"); out.code != exitUsage || !strings.Contains(out.stderr, "bash, zsh, fish") {
		t.Errorf("completion csh: exit code %d, %s", out.code, out.stderr)
	}
}

// TestTheManualPageHasAllCommandsAndFlags: what a command says in its help, the page says, in the macros of man(7).
func TestTheManualPageHasAllCommandsAndFlags(t *testing.T) {
	t.Parallel()
	page := runCommand(t, map[string]string{"FENCEPOST_DSN": "postgres://u:secret@h/d"}, "man").stdout
	if strings.Contains(page, "secret") {
		t.Error("the page shows a password")
	}
	known := []string{".TH", ".SH", ".SS", ".TP", ".B", ".PP", ".ad", ".nh"}
	for line := range strings.Lines(page) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !slices.Contains(known, word) {
			t.Errorf("a line is a request of roff: %s", line)
		}
	}
	_, rest, _ := strings.Cut(page, "\n.SH COMMANDS\n")
	_, seeAlso, _ := strings.Cut(rest, "\n.SH SEE ALSO\n")
	if seeAlso == "" {
		t.Error("the page has no end")
	}
	for _, c := range commands() {
		_, section, there := strings.Cut(rest, ".SS fencepost "+roffWord(c.name)+"\n")
		if there == c.hidden {
			t.Errorf("%s: in the page %v, hidden %v", c.name, there, c.hidden)
		}
		section, _, _ = strings.Cut(section, ".S") // of .SS or .SH
		for line := range strings.Lines(runCommand(t, nil, c.name, "--help").stdout) {
			flag, isFlag := strings.CutPrefix(line, "  --")
			if name, text, _ := strings.Cut(flag, "  "); isFlag && !c.hidden && !strings.Contains(section, ".TP\n.B "+roffWord("--"+name)+"\n"+roffWord(strings.TrimSpace(text))+"\n") {
				t.Errorf("the page does not have --%s of %s", name, c.name)
			}
		}
	}
	for text, want := range map[string]string{".so x\n": "\\&.so x\n", "'c'\n": "\\&'c'\n", "a \\ b\n": "a \\e b\n", "\n": ".PP\n"} {
		if got := roff(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// A proxy that has panicked, after which Go's runtime exits with 2, is started again; one that cannot
// start is not.
func TestTheUnitRestartsAfterAPanic(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile(filepath.Join("..", "..", "etc", "systemd", "fencepost.service"))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("\nRestartPreventExitStatus=%d\n", runCommand(t, nil, "serve", "--config", "/nowhere/fencepost.yml").code)
	if strings.Count(string(unit), "RestartPreventExitStatus=") != 1 || !strings.Contains(string(unit), want) || strings.HasSuffix(want, "=2\n") {
		t.Errorf("the unit has no %q", want)
	}
}
