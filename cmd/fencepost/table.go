package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// printTable prints rows in aligned columns, with each cell as dash shows it. heads are the names of the columns, with
// tabs between them.
func printTable(out io.Writer, heads string, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, heads)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = dash(cell)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}
