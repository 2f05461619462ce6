package main

import (
	"fmt"
	"strings"
)

// Lengths of the picture, in pixels.
const (
	left, right = 210, 60 // beside the bars
	unit        = 420     // the length of a ratio of 1
	thick, gap  = 12, 14  // the height of a bar, and what is free between cells
	head        = 50      // above the bars

	mostDrawn = 1.25 // the longest bar, as a ratio
)

// drawn are the contenders in the picture, with their colours.
var drawn = []struct{ name, colour string }{{"unfenced", "#3d7ea6"}, {"fenced", "#c8553d"}}

// picture draws the throughput of Fencepost, as ratios to that of PgBouncer.
func (all *results) picture() string {
	var bars strings.Builder
	y := head
	for _, c := range all.cells {
		if c.load.less || c.ratio("fenced", base, rate) == 0 {
			continue
		}
		top := y
		for _, d := range drawn {
			r := c.ratio(d.name, base, rate)
			if r == 0 {
				continue
			}
			fmt.Fprintf(&bars, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d">%.2f</text>`+"\n",
				left, y, min(r, mostDrawn)*unit, thick-2, d.colour, left+min(r, mostDrawn)*unit+5, y+thick-3, r)
			y += thick
		}
		fmt.Fprintf(&bars, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-8, (top+y)/2+3, c.name())
		y += gap
	}
	var b strings.Builder
	width := left + int(unit*mostDrawn) + right
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11" role="img">`+"\n", width, y)
	b.WriteString("<title>Throughput of Fencepost in relation to that of PgBouncer, by load</title>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, y)
	for i, d := range drawn {
		x := left + i*110
		fmt.Fprintf(&b, `<rect x="%d" y="14" width="11" height="11" fill="%s"/><text x="%d" y="24">%s</text>`+"\n", x, d.colour, x+16, d.name)
	}
	fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#888" stroke-dasharray="3"/><text x="%d" y="%d" text-anchor="middle">PgBouncer</text>`+"\n",
		left+unit, head-8, left+unit, y, left+unit, head-12)
	return b.String() + bars.String() + "</svg>\n"
}
