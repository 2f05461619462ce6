// Package table shows what a proxy and its databases know as tables: fencepost status, clients and the
// other commands print them, and the console answers with them.
package table

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// Print prints rows in aligned columns, with each cell as Dash shows it. heads are the names of the columns, with
// tabs between them.
func Print(out io.Writer, heads string, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, heads)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = Dash(cell)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// Columns returns the names of columns as SQL would have them.
func Columns(heads string) []string {
	return strings.Split(strings.ToLower(strings.ReplaceAll(heads, " ", "_")), "\t")
}

// Dash returns the text of a cell, as Printable returns it.
func Dash(s string) string { return cmp.Or(Printable(s), "-") }

// Printable returns a text as it is, or quoted. Workers and users of Postgres choose names, so a
// name that contains unprintable characters, or is not valid UTF-8, is quoted. It can
// then neither add a line nor send control sequences to a terminal.
func Printable(s string) string {
	quote := !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) })
	if quote {
		return strconv.QuoteToGraphic(s)
	}
	return s
}

// MostNames is how many names are named in one line.
const MostNames = 10

// Names returns the first names of a list, and how many more there are.
func Names(list []string) string {
	var shown []string
	for _, name := range list[:min(len(list), MostNames)] {
		shown = append(shown, Dash(name))
	}
	text := strings.Join(shown, ", ")
	if more := len(list) - MostNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Since returns a time and how long ago that was.
func Since(at time.Time) string {
	return fmt.Sprintf("%s (%s)", at.Local().Format(time.DateTime), time.Since(at).Truncate(time.Second))
}

// Left returns how much time is left, in tenths of a second.
func Left(left time.Duration) string {
	return max(0, left).Truncate(100 * time.Millisecond).String()
}

// Seconds returns a number of seconds, as JSON has them, as a duration.
func Seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
