package main

import (
	"context"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// advice is a command of Fencepost that a text names.
type advice struct {
	where string
	args  []string // its words: the command, its action, flags and operands
	// named means that the text only names the command, as in "fencepost guard add says why", and does not say how to run it.
	named bool
}

// operand is a word that stands for an operand, a value of a flag or both: RESOURCE, %s, or in a page the name of an example.
var operand = regexp.MustCompile(`^(%(\[\d\])?[sdq]|[A-Z_]+|billing|host-\S+|fence-\d)$`)

// sqlComment is a comment of SQL that no text contains.
var sqlComment = regexp.MustCompile(`--[^\n']*\n`)

// follows is what stands in front of a command that is to be run.
var follows = regexp.MustCompile(`(?i)(\brun|:)\s*$`)

// adviceIn finds the commands that a text names. One that follows "run" or a colon, or has flags, is one to run as it is
// written, unless "again" follows, which means one that the reader has run, or "shows".
func adviceIn(t *testing.T, where, text string) (all []advice) {
	t.Helper()
	for _, at := range regexp.MustCompile(`\bfencepost [a-z]`).FindAllStringIndex(text, -1) {
		words := strings.Fields(text[at[0]+len("fencepost "):])
		a := advice{where: where, named: !follows.MatchString(text[:at[0]])}
		take := func() (word string, more bool) { // more is false if a punctuation mark ends the command
			word = strings.TrimRight(words[0], "\"'`.,:;)")
			more = word == words[0] || word+"..." == words[0]
			words = words[1:]
			return word, more
		}
		name, more := take()
		i := slices.IndexFunc(commands(), func(c command) bool { return c.name == name && !c.hidden })
		if i < 0 {
			if !more || len(words) > 0 && strings.HasPrefix(words[0], "--") || !a.named {
				t.Errorf("%s: there is no command fencepost %s", where, name)
			}
			continue // fencepost is a noun, as in "the schema fencepost is missing"
		}
		c := commands()[i]
		a.args = []string{name}
		if more && len(words) > 0 && c.actions()[0] != "" && slices.Contains(c.actions(), strings.TrimRight(words[0], "\"'`.,:;)")) {
			var action string
			action, more = take()
			a.args = append(a.args, action)
		}
		flags := flagsOf(c, a.args[1:])
		for more && len(words) > 0 {
			name, isFlag := strings.CutPrefix(strings.TrimRight(words[0], "\"'`.,:;)"), "--")
			if !isFlag && !operand.MatchString(strings.TrimRight(words[0], "\"'`.,:;)")) {
				break
			}
			var word string
			word, more = take()
			a.args = append(a.args, word)
			if isFlag {
				a.named = false
				if f := flags.Lookup(name); f == nil {
					t.Errorf("%s: fencepost %s has no flag %s", where, strings.Join(a.args, " "), word)
				} else if b, ok := f.Value.(interface{ IsBoolFlag() bool }); !ok || !b.IsBoolFlag() {
					if !more || len(words) == 0 || strings.HasPrefix(words[0], "--") {
						t.Errorf("%s: fencepost %s: %s has no value", where, strings.Join(a.args, " "), word)
						break
					}
					word, more = take()
					a.args = append(a.args, word)
				}
			}
		}
		a.named = a.named || len(words) > 0 && (strings.HasPrefix(words[0], "again") || words[0] == "shows")
		all = append(all, a)
	}
	return all
}

// flagsOf returns the flags of a command.
func flagsOf(c command, action []string) (of *flag.FlagSet) {
	_ = c.run(context.Background(), terminal{getenv: func(string) string { return "" }, flags: func(fs *flag.FlagSet) { of = fs }}, action) // always flag.ErrHelp
	return of
}

// textsOf returns the texts in the sources of a directory and of those below it, by place: the strings of Go, whose
// parts that are computed are %s, and those of SQL. What a command says of its own usage is none.
func textsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	files := token.NewFileSet()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasSuffix(d.Name(), "test") || d.Name() == "fixture"): // what only tests use
			return fs.SkipDir
		case strings.HasSuffix(path, ".sql"):
			text, err := os.ReadFile(path)
			texts[path] = string(sqlComment.ReplaceAll(text, []byte("\n")))
			return err
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			text, ok := textOf(e)
			if ok && !strings.Contains(text, "Usage: fencepost") {
				texts[files.Position(n.Pos()).String()] = text
			}
			return !ok
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// textOf returns the text of a string of Go, or of a sum of several. ok is false for other expressions.
func textOf(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, isLeft := textOf(e.X)
		right, isRight := textOf(e.Y)
		if !isLeft {
			left = "%s"
		}
		if !isRight {
			right = "%s"
		}
		return left + right, e.Op == token.ADD && (isLeft || isRight)
	}
	return "", false
}

// TestHintsAreCommandsThatWork: each command that a refusal, a fault, a finding of the doctor or another message tells the
// reader to run is one that works as it is written, with his own names. Those of raft need its cluster, so they are only
// parsed here.
func TestHintsAreCommandsThatWork(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	run := map[string]advice{} // by the command with the site's names
	for _, dir := range []string{"cmd/fencepost", "election", "fencing", "internal", "migrations", "proxy", "upstream"} {
		for where, text := range textsOf(t, filepath.Join("..", "..", dir)) {
			for _, a := range adviceIn(t, where, text) {
				if !a.named && a.args[0] != "raft" {
					run[strings.Join(site.filled(a.args), " ")] = a
				}
			}
		}
	}
	if len(run) < 10 {
		t.Fatalf("only %d commands were found: %v", len(run), run)
	}
	for _, text := range slices.Sorted(maps.Keys(run)) {
		site.run(t, run[text])
	}
}

// TestIncidentsDocs: each command of docs/incidents.md is one of the command line, and each section has one. Those that only
// read work on a proxy.
func TestIncidentsDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "incidents.md"))
	if err != nil {
		t.Fatal(err)
	}
	site, ran := newSite(t), 0
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		commands := 0
		for _, code := range regexp.MustCompile("(?s)```(\\w*)\n(.*?)```|`(fencepost [^`]*)`").FindAllStringSubmatch(section, -1) {
			if code[1] != "" { // what a command shows
				continue
			}
			for line := range strings.Lines(code[2] + code[3]) {
				all := adviceIn(t, title, "run: "+line)
				if len(all) != 1 || len(all[0].args) != len(strings.Fields(line))-1 {
					t.Fatalf("%s: %q is no command: %+v", title, line, all)
				}
				commands++
				switch a := all[0]; strings.Join(a.args[:min(2, len(a.args))], " ") {
				case "doctor --database": // it finds that the test's server is not durable
					if out := runCommand(t, site.env, site.filled(a.args)...); out.code != exitFailure || !strings.Contains(out.stdout, "fsync-off") {
						t.Errorf("%s: doctor: exit code %d: %s%s", title, out.code, out.stdout, out.stderr)
					}
					ran++
				case "status --resource", "status --ready", "audit --resource", "resource list", "reload":
					if out := site.run(t, a); out.stdout == "" {
						t.Errorf("%s: %s shows nothing", title, line)
					}
					ran++
				}
			}
		}
		if commands == 0 {
			t.Errorf("the section %q has no command", title)
		}
	}
	if ran < 12 {
		t.Errorf("only %d commands were run", ran)
	}
}

// TestDocsLinkToHeadings: a link to another page of the documentation, or to a heading, leads to one.
func TestDocsLinkToHeadings(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	var pages []string
	for _, dir := range []string{".", "docs", "docs/benchmarks", "docs/decisions", "proof", "test/protocol"} {
		there, err := filepath.Glob(filepath.Join(root, dir, "*.md"))
		if err != nil || len(there) == 0 {
			t.Fatalf("%d pages in %s: %v", len(there), dir, err)
		}
		pages = append(pages, there...)
	}
	headings, links, dropped := regexp.MustCompile(`(?m)^#+ (.*)$`), regexp.MustCompile(`\]\(([^():#]*\.md)?(?:#([^()]*))?\)`), regexp.MustCompile(`[^a-z0-9 _-]`)
	texts, anchors := map[string]string{}, map[string][]string{}
	read := func(page string) {
		if _, known := texts[page]; known {
			return
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Error(err)
		}
		texts[page] = string(text)
		for _, h := range headings.FindAllStringSubmatch(string(text), -1) {
			anchors[page] = append(anchors[page], strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
		}
	}
	for _, page := range pages {
		read(page)
		for _, link := range links.FindAllStringSubmatch(texts[page], -1) {
			target := page
			if link[1] != "" {
				target = filepath.Join(filepath.Dir(page), link[1])
				read(target)
			}
			if link[2] != "" && !slices.Contains(anchors[target], link[2]) {
				t.Errorf("%s: there is no heading #%s in %s", page, link[2], target)
			}
		}
	}
}

// TestPagesNamedInTheTreeExist: a page that a message, a comment or a manifest names is there.
func TestPagesNamedInTheTreeExist(t *testing.T) {
	t.Parallel()
	root, pages, named := filepath.Join("..", ".."), regexp.MustCompile(`docs/[a-z-]+\.md\b`), 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".."):
			return filepath.SkipDir
		case !slices.Contains([]string{".go", ".sql", ".sh", ".yml", ".yaml", ".json"}, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, page := range pages.FindAllString(string(text), -1) {
			named++
			if _, err := os.Stat(filepath.Join(root, page)); err != nil {
				t.Errorf("%s names %s: %v", path, page, err)
			}
		}
		return err
	})
	if err != nil || named < 40 {
		t.Errorf("%d pages are named: %v", named, err)
	}
}

// site is a proxy with a worker that leads the resource billing, in whose database the table invoices is guarded.
type site struct {
	*servicetest.Running
	server *pgtest.Server
	db     string
	env    map[string]string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := pgtest.Shared(t)
	r := &site{Running: servicetest.Start(t, s, nil), server: s, db: s.Database(t)}
	r.env = map[string]string{"FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_ADMIN_ADDRESS": r.AdminAddress().String(), "FENCEPOST_LIMITS_MAX_CONNECTIONS": "10"}
	s.Exec(t, pgtest.App, r.db, "CREATE TABLE invoices (id int, fence_epoch bigint)")
	r.Connect(t, r.db, "fencepost.resource=billing&fencepost.worker=host-7:4242:k3")
	return r
}

// filled returns the words of a command with the names of the site in the place of those in the text.
func (r *site) filled(args []string) []string {
	values := map[string]string{"--dsn": r.server.DSN(pgtest.Superuser, r.db), "--database": r.db, "--above": "7", "--resource": "billing",
		"--table": "public.invoices", "--stamp": "fence_epoch", "--control-role": pgtest.Control}
	all, last := slices.Clone(args), ""
	for i, word := range args {
		if value, ok := values[last]; ok {
			all[i] = value
		} else if operand.MatchString(word) && !strings.HasPrefix(last, "--") {
			all[i] = "billing"
		}
		last = word
	}
	return all
}

// run runs a command in a text, which must succeed.
func (r *site) run(t *testing.T, a advice) output {
	t.Helper()
	out := runCommandWith(t, "yes\n", r.env, r.filled(a.args)...)
	if out.code != exitOK {
		t.Errorf("%s: fencepost %s: exit code %d: %s%s", a.where, strings.Join(a.args, " "), out.code, out.stdout, out.stderr)
	}
	return out
}
