package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

const (
	rawFile = "docs/benchmarks.csv"
	page    = "docs/benchmarks.md"
	drawing = "docs/benchmarks.svg"
	figures = "docs/benchmarks" // has a page for each load
	// begin and end enclose what is written into the page.
	begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
)

// write puts newer results in the place of older ones, and makes the page and its picture of all.
func write(newer *results) error {
	all := &results{}
	switch older, err := os.ReadFile(rawFile); {
	case err == nil:
		if all, err = readCSV(bytes.NewReader(older)); err != nil {
			return fmt.Errorf("read %s: %w", rawFile, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	all.replace(newer)
	raw, err := all.csv()
	if err != nil {
		return err
	}
	if all, err = readCSV(bytes.NewReader(raw)); err != nil { // the page has the figures as they are rounded there
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	written, err := insert(string(text), all.sections())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(figures, 0o755); err != nil {
		return err
	}
	for _, l := range all.loads() {
		if err := os.WriteFile(l.page(), []byte(all.figures(l)), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(os.WriteFile(rawFile, raw, 0o644), os.WriteFile(page, []byte(written), 0o644), os.WriteFile(drawing, []byte(all.picture()), 0o644))
}

// sections is what is written into the page.
func (all *results) sections() string {
	return "## Bars\n\n" + all.bars() + "\n## Figures\n\n" + all.contents() + "\n"
}

// page is the path of the load's figures.
func (l *load) page() string { return path.Join(figures, l.name+".md") }

// insert replaces what stands between the marks of the page.
func insert(page, text string) (string, error) {
	before, rest, found := strings.Cut(page, begin)
	_, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		return "", errors.New("the page has no place for what was measured")
	}
	return before + begin + text + end + after, nil
}

// measured says when and of what the cells of a load were measured, and how to do it again.
func measured(cells []*cell) string {
	var b strings.Builder
	var origins []string
	in := map[string][]string{} // the settings of each origin
	for _, c := range cells {
		from := c.origin()
		if in[from] == nil {
			origins = append(origins, from)
		}
		in[from] = append(in[from], c.setting())
	}
	for _, from := range origins {
		if len(origins) > 1 {
			fmt.Fprintf(&b, "%s: ", strings.Join(in[from], "; "))
		}
		b.WriteString(from + ".\n")
	}
	fmt.Fprintf(&b, "Again: `make bench ARGS=\"-write -loads %s\"`.\n", cells[0].load.name)
	return b.String()
}

// origin says of which rounds the cell's figures are.
func (c *cell) origin() string {
	n, kept := 0, ""
	for _, runs := range c.runs {
		n = max(n, len(runs))
		if slices.ContainsFunc(runs, func(s sample) bool { return s.medianOf > 0 }) {
			n, kept = runs[0].medianOf, ", of which only the medians were kept"
			break
		}
	}
	s := "s"
	if n == 1 {
		s = ""
	}
	return fmt.Sprintf("%d round%s of %d s%s, on %s, commit %s, with %s", n, s, c.from.seconds, kept, c.from.date, c.from.commit, c.from.machine)
}
