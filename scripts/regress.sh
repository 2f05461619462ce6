#!/usr/bin/env bash
# Run PostgreSQL's own regression and isolation suites, once directly against
# PostgreSQL and once through Fencepost as leader, and compare their output. apt
# provides the suites with the sources of the server's package. The script fails if
# a file differs that is not known to; the suites' expected output is not used.
#
#   make regress
#   SUITES=regress TESTS="test_setup portals" make regress
set -euo pipefail
cd "$(dirname "$0")/.."

suites=${SUITES:-regress isolation}

# Files whose outputs are known to differ, and why: see the differences in docs/differences.md.
known=$(
	cat <<'LIST'
regress prepared_xacts  # two-phase commit is refused
regress temp  # the same
isolation stats  # the same
LIST
)

bin=$(scripts/setup.sh postgres-bin)
[ -x "$bin/psql" ] || { # without it, the files of both sides are equal, because they have the same error
	echo "$bin has no psql, which runs the suites: set FENCEPOST_TEST_PG_BIN to a directory that has it" >&2
	exit 1
}
major=$("$bin/postgres" --version | sed -E 's/.* ([0-9]+)\..*/\1/')
home=$PWD/.cache/regress/$major

# Sources are fetched like packages, but from separate package lists.
fetch() {
	local apt=$home/apt version
	rm -rf "$home"
	mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/sources.d"
	sed 's/^deb /deb-src /' /etc/apt/sources.list >"$apt/sources.list" 2>/dev/null || true
	sed 's/^Types: deb$/Types: deb-src/; s/^deb /deb-src /' /etc/apt/sources.list.d/debian.sources >"$apt/sources.d/debian.sources" 2>/dev/null || true
	printf '%s\n' "Dir::State::lists \"$apt/lists\";" "Dir::Cache \"$apt/cache\";" \
		"Dir::Etc::sourcelist \"$apt/sources.list\";" "Dir::Etc::sourceparts \"$apt/sources.d\";" >"$apt/apt.conf"
	APT_CONFIG=$apt/apt.conf apt-get -qq update
	version=$(dpkg-query -W -f '${source:Version}' "postgresql-$major")
	(cd "$home" && APT_CONFIG=$apt/apt.conf apt-get -qq source --download-only "postgresql-$major=$version")
	mkdir "$home/src"
	tar -xf "$home"/*.orig.tar.* -C "$home/src" --strip-components 1
}

build() {
	echo "fetching and building the suites of PostgreSQL $major" >&2
	fetch
	(
		cd "$home/src"
		./configure --without-readline --without-zlib --without-icu CFLAGS=-O1
		make -C src/backend generated-headers
		for dir in src/port src/common src/interfaces/libpq src/test/regress src/test/isolation contrib/spi; do make -C "$dir"; done
		cp contrib/spi/*.so src/test/regress
	) >"$home/build.log" 2>&1 || { tail -n 20 "$home/build.log" >&2; return 1; }
	touch "$home/built"
}

[ -e "$home/built" ] || build
src=$home/src/src
. scripts/servers.sh

# server SIDE starts a server with the suites' databases. Each has a fence, so that
# the catalogs of both sides are the same. port is the port for clients.
server() {
	local dir=$tmp/$1 db setting
	port=$(free_port)
	"${unprivileged[@]}" mkdir "$dir"
	(
		cd "$dir"
		"${unprivileged[@]}" "$bin/initdb" -D "$dir/data" -U postgres -A trust --no-locale -E UTF8 --no-sync >/dev/null
		exec "${unprivileged[@]}" "$bin/postgres" -D "$dir/data" -h 127.0.0.1 -p "$port" -k "" -c fsync=off \
			-c max_connections=200 -c max_prepared_transactions=2 >"$dir/postgres.log" 2>&1
	) &
	pids+=($!)
	local at="postgres://postgres@127.0.0.1:$port"
	await psql -qX "$at/postgres" -c 'select 1'
	psql -qX "$at/postgres" -c 'create role fencepost superuser login'
	for db in regress isolation; do
		psql -qX "$at/postgres" -c "create database $db template template0"
		for setting in lc_messages=C lc_monetary=C lc_numeric=C lc_time=C bytea_output=hex timezone_abbreviations=Default; do
			psql -qX "$at/postgres" -c "alter database $db set ${setting%=*} to '${setting#*=}'"
		done
		FENCEPOST_CONTROL_PASSWORD=regress bin/fencepost migrate --dsn "$at/$db" >/dev/null
	done
}

fence() {
	local upstream=$port
	port=$(free_port)
	FENCEPOST_UPSTREAM_ADDRESS=127.0.0.1:$upstream FENCEPOST_LISTEN=127.0.0.1:$port FENCEPOST_ADMIN=127.0.0.1:$(free_port) \
		FENCEPOST_LEASE_LINGER=10m FENCEPOST_LEASE_WORKER_TIMEOUT=0s bin/fencepost serve >"$tmp/fencepost.log" 2>&1 &
	pids+=($!)
	await psql -qX "postgres://postgres@127.0.0.1:$port/postgres" -c 'select 1'
}

# run SUITE SIDE
run() {
	local dir=$src/test/$1 program=pg_regress schedule=parallel_schedule out=$tmp/$2/$1
	if [ "$1" = isolation ]; then program=pg_isolation_regress schedule=isolation_schedule; fi
	"${unprivileged[@]}" mkdir -p "$out/testtablespace"
	local tests=(--schedule="$dir/$schedule")
	if [ -n "${TESTS:-}" ]; then read -ra tests <<<"$TESTS"; fi
	(
		cd "$out"
		export PGOPTIONS="-c fencepost.resource=r -c fencepost.worker=w" LD_LIBRARY_PATH=$src/interfaces/libpq
		"${unprivileged[@]}" "$dir/$program" --inputdir="$dir" --outputdir="$out" --bindir="$bin" --dlpath="$src/test/regress" \
			--host=127.0.0.1 --port="$port" --user=postgres --use-existing --dbname="$1" --max-connections=1 "${tests[@]}"
	) >"$tmp/$2/$1.log" 2>&1 || true
	echo "$1, $2: $(find "$out/results" -name '*.out' | wc -l) files"
}

server direct
for suite in $suites; do run "$suite" direct; done
server fenced
fence
for suite in $suites; do run "$suite" fenced; done

differ=0
for suite in $suites; do
	for file in "$tmp/direct/$suite/results"/*.out; do
		name=$(basename "$file" .out)
		if diff -U3 --label "$suite/$name, direct" --label "$suite/$name, through Fencepost" \
			<(sed "s#$tmp/direct#OUT#g" "$file") <(sed "s#$tmp/fenced#OUT#g" "$tmp/fenced/$suite/results/$name.out") >"$tmp/diff"; then
			continue
		fi
		if grep -q "^$suite $name " <<<"$known"; then
			echo "known: $(grep "^$suite $name " <<<"$known")"
			continue
		fi
		differ=1
		cat "$tmp/diff"
	done
done
exit $differ
