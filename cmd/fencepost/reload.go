package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"strings"

	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/service/reload"
	"github.com/fencepost/fencepost/internal/table"
)

const reloadAbout = `
Usage: fencepost reload [--admin ADDRESS]

Makes a running Fencepost read its configuration file again, as SIGHUP does. Prints
each changed setting, and whether it was applied or needs a restart, or where it does
not count yet. New connections
get the new settings; existing ones keep theirs. If the configuration is invalid,
nothing changes: reload prints the errors and exits with 1. So it does if a
certificate, a key or another file of TLS cannot be used; the earlier one holds then.`

func runReload(ctx context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("reload", flag.ContinueOnError)
	var flags admin.ClientFlags
	flags.Add(fs, t.getenv, config.Default().Admin.Address)
	if err := parseFlags(t, fs, reloadAbout, args, 0); err != nil {
		return err
	}
	proxy, err := flags.Client()
	if err != nil {
		return usageError{err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var result reload.Result
	if err := proxy.Ask(ctx, http.MethodPost, "/v1/reload", &result, http.StatusOK, http.StatusUnprocessableEntity); err != nil {
		return err
	}
	if len(result.Errors) > 0 {
		return errors.New("the configuration is invalid, nothing has changed:\n" + strings.Join(result.Errors, "\n"))
	}
	for _, c := range result.Changes {
		what := "applied"
		if !c.Applied {
			what = "needs a restart"
		}
		if c.Note != "" {
			what += ", but " + table.Dash(c.Note)
		}
		if _, err := fmt.Fprintf(t.stdout, "%s: %s -> %s: %s\n", table.Dash(c.Setting), table.Dash(c.Old), table.Dash(c.New), what); err != nil {
			return err
		}
	}
	if len(result.Changes) == 0 {
		if _, err := fmt.Fprintln(t.stdout, "no setting has changed"); err != nil {
			return err
		}
	}
	if len(result.Files) > 0 {
		return errors.New("files cannot be used, and the earlier ones hold:\n" + strings.Join(result.Files, "\n"))
	}
	return nil
}
