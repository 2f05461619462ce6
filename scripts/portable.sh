#!/usr/bin/env bash
# Print our packages that link, tests included, no grammar of Postgres: those that
# need no cgo, and so can be vetted for another system than this one.
set -euo pipefail
cd "$(dirname "$0")/.."

grammar=github.com/pganalyze/pg_query_go/v6
linked=$(go list -test -f "{{\$p := or .ForTest .ImportPath}}{{range .Deps}}{{if eq . \"$grammar\"}}{{\$p}}{{end}}{{end}}" ./...)
comm -23 <(go list ./... | sort) <(sed 's/\.test$//' <<<"$linked" | sort -u)
