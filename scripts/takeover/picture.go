package main

import (
	"fmt"
	"strings"
)

// Lengths of the picture, in pixels.
const (
	left, right = 110, 90 // beside the bars
	span        = 500     // the longest bar
	bar, gap    = 14, 18  // the height of a bar, and what is free between services
	head        = 56      // above the bars
)

// colours are those of the ways.
var colours = []string{"#4c9f70", "#3d7ea6", "#c8553d", "#8e6c8a"}

// picture draws the medians as bars, and the longest times as thin lines behind them.
func (all *results) picture() string {
	most, height := 0.0, head
	for _, of := range all.of {
		for _, r := range of {
			most = max(most, r.longest)
		}
		height += len(of)*bar + gap
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12" role="img">`+"\n",
		left+span+right, height)
	b.WriteString("<title>How long nobody could write, by lease service and by what happened to the leader</title>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", left+span+right, height)
	for i, way := range ways {
		x := 20 + i*165
		fmt.Fprintf(&b, `<rect x="%d" y="16" width="12" height="12" fill="%s"/><text x="%d" y="26">%s</text>`+"\n", x, colours[i], x+18, way.title)
	}
	y := head
	for _, service := range all.services {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-10, y+len(all.of[service])*bar/2+4, service)
		for i, way := range ways {
			r, ok := all.of[service][way.name]
			if !ok {
				continue
			}
			long, median := r.longest/most*span, r.median/most*span
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="2" fill="%s"/>`, left, y+bar/2-2, long, colours[i])
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, left, y, max(median, 1), bar-3, colours[i])
			fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`+"\n", left+long+6, y+bar-3, duration(r.median))
			y += bar
		}
		y += gap
	}
	b.WriteString("</svg>\n")
	return b.String()
}
