package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
)

// shell is a terminal of somebody who does what a page says: a bash that ends at the first command that fails.
type shell struct {
	exampleWorker
	keys io.Writer
	read int // how much of its output was compared with what the page shows
}

// newShell opens a terminal in a directory.
func newShell(t *testing.T, name, dir string, env []string) *shell {
	t.Helper()
	c := &shell{exampleWorker: exampleWorker{name: name, cmd: exec.Command("bash", "-e")}}
	c.cmd.Dir, c.cmd.Env = dir, env
	keys, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.keys = keys
	c.start(t)
	return c
}

// enter types commands, and returns at once.
func (c *shell) enter(t *testing.T, commands string) {
	t.Helper()
	if _, err := io.WriteString(c.keys, commands); err != nil {
		t.Fatalf("%s: type %q: %v; it printed:\n%s", c.name, commands, err, c.output())
	}
}

// prints waits until the terminal has printed lines, in this order and with others between them. Their spaces count as one,
// and … stands for any text.
func (c *shell) prints(t *testing.T, lines string) {
	t.Helper()
	var pattern []string
	for line := range strings.Lines(lines) {
		words := regexp.QuoteMeta(strings.Join(strings.Fields(line), " "))
		pattern = append(pattern, ` *`+strings.NewReplacer(" ", " +", "…", ".*").Replace(words)+` *\n`)
	}
	shown := regexp.MustCompile(`(?m)^` + strings.Join(pattern, `(?:.*\n)*?`))
	var found []int
	if !process.Holds(process.Patience, func() bool {
		found = shown.FindStringIndex(c.output()[c.read:])
		return found != nil
	}) {
		t.Fatalf("%s has not printed\n%sbut\n%s", c.name, lines, c.output()[c.read:])
	}
	c.read += found[1]
}

// somebody is the environment of who follows a page on a server of his own, with a proxy at a port that is free.
func somebody(t *testing.T, s *pgtest.Server) (env []string, proxy *ports.Port) {
	t.Helper()
	bin := t.TempDir()
	if err := os.Symlink(process.Program(t), filepath.Join(bin, "fencepost")); err != nil {
		t.Fatal(err)
	}
	proxy = ports.For(t)
	return process.Environment("PATH="+bin+":"+os.Getenv("PATH"), "MAKEFLAGS=", "SERVER="+s.Addr(),
		"FENCEPOST_LISTEN="+proxy.Address(), "FENCEPOST_ADMIN_ADDRESS="+ports.For(t).Address()), proxy
}

// TestTheTutorial does what docs/tutorial.md says, and compares what is printed with what it shows.
func TestTheTutorial(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	if words := len(strings.Fields(string(page))); words >= 1200 {
		t.Errorf("the tutorial has %d words: it is to be read in 15 minutes", words)
	}
	env, _ := somebody(t, pgtest.Start(t))
	dir := t.TempDir()
	consoles := map[string]*shell{}
	var last *shell
	compared := 0
	for _, block := range regexp.MustCompile("(?s)```(\\w+)\n(?:# (Terminal \\d)\n)?(.*?)```").FindAllStringSubmatch(string(page), -1) {
		kind, name, text := block[1], block[2], block[3]
		if name != "" {
			if consoles[name] == nil {
				consoles[name] = newShell(t, name, dir, env)
			}
			last = consoles[name]
		}
		switch {
		case kind == "sh" && name != "":
			last.enter(t, text)
		case kind == "text" && last != nil:
			last.prints(t, text)
			compared++
		default:
			t.Fatalf("this block is neither what somebody types in a terminal nor what it prints:\n%s", text)
		}
	}
	if len(consoles) != 3 || compared < 10 {
		t.Errorf("%d terminals, and %d blocks were compared", len(consoles), compared)
	}
}

// TestTheReadmesCommands runs the commands by which README.md has somebody begin, with the addresses of a server of the test.
func TestTheReadmesCommands(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)To use Fencepost with your own database:\n\n```\n(.*?)```").FindStringSubmatch(string(page))
	if block == nil {
		t.Fatal("README.md does not say how to begin")
	}
	s := pgtest.Start(t)
	s.Exec(t, pgtest.Superuser, "postgres", "CREATE ROLE shop LOGIN", "CREATE DATABASE shop OWNER shop")
	env, proxy := somebody(t, s)
	here := strings.NewReplacer("@db/", "@"+s.Addr()+"/", "db:5432", s.Addr(), "port=6432", fmt.Sprint("port=", proxy.Number))
	commands := slices.Collect(strings.Lines(here.Replace(block[1])))
	if len(commands) != 4 {
		t.Fatalf("README.md has %d commands, and not 4: %q", len(commands), commands)
	}
	build := exec.Command("bash", "-c", commands[0]) // it may take minutes the first time
	build.Dir, build.Env = root, env
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", commands[0], err, out)
	}
	shell := newShell(t, "the first terminal", root, env)
	shell.enter(t, commands[1])
	shell.prints(t, "database shop: made the schema fencepost, version 1\n")
	shell.enter(t, commands[2])
	shell.prints(t, "…\"msg\":\"serving\"…\n")
	shell = newShell(t, "the second terminal", root, env)
	shell.enter(t, commands[3]+"SHOW fencepost.role;\n")
	shell.prints(t, "leader\n")
}

// TestTheGlossaryHasAllWords: the page has the words of fencing/doc.go and others, in alphabetical order.
func TestTheGlossaryHasAllWords(t *testing.T) {
	t.Parallel()
	read := func(path string, word *regexp.Regexp) (words []string) {
		text, err := os.ReadFile(filepath.Join("..", "..", path))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range word.FindAllStringSubmatch(string(text), -1) {
			words = append(words, strings.TrimPrefix(m[1], "backend "))
		}
		return words
	}
	page := read("docs/glossary.md", regexp.MustCompile(`(?m)^\| \*\*(.*)\*\* \| .*\. \|$`))
	for _, word := range read("fencing/doc.go", regexp.MustCompile(`(?m)^//   - ([a-z ]+): `)) {
		if !slices.Contains(page, word) {
			t.Errorf("docs/glossary.md does not have the word %q", word)
		}
	}
	if len(page) < 30 || !slices.IsSorted(page) {
		t.Errorf("docs/glossary.md has %d words, which are to be in alphabetical order: %q", len(page), page)
	}
}

// TestArchitectureNamesFilesThatExist: a path in ARCHITECTURE.md is one of the tree.
func TestArchitectureNamesFilesThatExist(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	if len(page) > 20<<10 {
		t.Errorf("ARCHITECTURE.md has %d bytes: what explains a decision belongs in docs/decisions", len(page))
	}
	paths := regexp.MustCompile("`([a-z_]+(?:/[a-z_.]+)+)`").FindAllSubmatch(page, -1)
	if len(paths) < 40 {
		t.Errorf("it names only %d paths", len(paths))
	}
	for _, path := range paths {
		if _, err := os.Stat(filepath.Join(root, string(path[1]))); err != nil {
			t.Errorf("ARCHITECTURE.md names %s: %v", path[1], err)
		}
	}
}

// TestPagesAreShortAndInTheIndex: docs/README.md has a line for each page, and no page takes longer than ten minutes to read.
func TestPagesAreShortAndInTheIndex(t *testing.T) {
	t.Parallel()
	docs := filepath.Join("..", "..", "docs")
	for _, dir := range []string{docs, filepath.Join(docs, "decisions")} {
		index, err := os.ReadFile(filepath.Join(dir, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
		if err != nil || len(pages) < 10 {
			t.Fatalf("%d pages: %v", len(pages), err)
		}
		for _, page := range pages {
			name := filepath.Base(page)
			if lines := strings.Count(string(index), "]("+name+"): ") + strings.Count(string(index), "]("+name+") |"); name != "README.md" && lines != 1 {
				t.Errorf("%s has %d lines for %s", filepath.Join(dir, "README.md"), lines, name)
			}
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			if words := len(strings.Fields(string(text))); words > 2500 {
				t.Errorf("%s has %d words, which are more than 2,500: make its subjects pages of their own", page, words)
			}
		}
	}
}
