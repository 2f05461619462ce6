package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

const manAbout = `
Usage: fencepost man

Prints the manual page fencepost(1), with the help of every command: fencepost man | man -l -`

func runMan(ctx context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("man", flag.ContinueOnError)
	if err := parseFlags(t, fs, manAbout, args, 0); err != nil {
		return err
	}
	_, err := io.WriteString(t.stdout, manual(ctx))
	return err
}

// manual returns the manual page, in the macros of man(7).
func manual(ctx context.Context) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH FENCEPOST 1 \"\" \"fencepost %s\"\n.ad l\n.nh\n.SH NAME\nfencepost \\- PostgreSQL proxy that makes leader election safe at the write\n", roffWord(versionText()))
	shown := slices.DeleteFunc(commands(), func(c command) bool { return c.hidden })
	b.WriteString(".SH SYNOPSIS\n")
	for _, c := range shown {
		fmt.Fprintf(&b, ".TP\n.B fencepost %s\n%s\n", roffWord(c.usage()), roffWord(c.summary))
	}
	b.WriteString(".SH DESCRIPTION\n" + roff(usageBegins+"\n"+usageEnds) + ".SH COMMANDS\n")
	for _, c := range shown {
		var help bytes.Buffer
		_ = c.run(ctx, terminal{stdout: &help, getenv: func(string) string { return "" }}, []string{"--help"}) // always flag.ErrHelp
		fmt.Fprintf(&b, ".SS fencepost %s\n%s", roffWord(c.name), roff(help.String()))
	}
	b.WriteString(".SH SEE ALSO\nThe documentation: /usr/share/doc/fencepost/README.md or https://github.com/fencepost/fencepost\n")
	return b.String()
}

// roff returns a help text in the macros of man(7). A line of it that is indented stays a line, and a flag becomes a
// paragraph with a tag.
func roff(help string) string {
	var b strings.Builder
	for line := range strings.Lines(help) {
		line = roffWord(strings.TrimSuffix(line, "\n"))
		switch name, text, _ := strings.Cut(strings.TrimSpace(line), "  "); {
		case line == "":
			b.WriteString(".PP\n")
		case strings.HasPrefix(line, `  \-\-`):
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", name, strings.TrimSpace(text))
		default:
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// roffWord escapes a text, which then is no request even at the beginning of a line.
func roffWord(text string) string {
	text = strings.NewReplacer(`\`, `\e`, `-`, `\-`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text
	}
	return text
}
