package main

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
)

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
