#!/usr/bin/env bash
# Run the test suites of pgx and lib/pq, once directly against PostgreSQL and once
# through Fencepost as leader, and fail if a test passes directly but not through it.
# The versions are those of test/drivers/go/go.mod; the sources come from the Go
# module proxy with the modules.
#
#   make suites
#   MAJOR=18 SUITES=pgx make suites
set -euo pipefail
cd "$(dirname "$0")/.."

suites=${SUITES:-pgx pq}

# Known differences: "suite package.Test  # why", one per line. There are none.
known=$(
	cat <<'LIST'
LIST
)

if [ -n "${MAJOR:-}" ]; then bin=$(scripts/postgres-version.sh "$MAJOR"); else bin=$(scripts/setup.sh postgres-bin); fi
. scripts/servers.sh

pg_port=$(free_port)
fence_port=$(free_port)
admin="postgres://postgres@127.0.0.1:$pg_port"

(cd "$tmp" && "${unprivileged[@]}" "$bin/initdb" -D "$tmp/data" -U postgres -A trust --no-locale -E UTF8 --no-sync >/dev/null)
cat >"$tmp/hba" <<'HBA'
host all pgx_md5,pqgomd5 all md5
host all pgx_scram,pqgoscram all scram-sha-256
host all pgx_pw,pqgopassword all password
host all all all trust
HBA
(cd "$tmp" && exec "${unprivileged[@]}" "$bin/postgres" -D "$tmp/data" -h 127.0.0.1 -p "$pg_port" -k "" \
	-c hba_file="$tmp/hba" -c fsync=off -c max_connections=200) >"$tmp/postgres.log" 2>&1 &
pids+=($!)
await psql -qAt "$admin/postgres" -c 'select 1'

# database NAME creates a database with a fence. The suites' users are superusers,
# whose backends only another superuser may end.
database() {
	psql -qX "$admin/postgres" -c "create database $1"
	FENCEPOST_CONTROL_PASSWORD=suites bin/fencepost migrate --dsn "$admin/$1" >/dev/null
	psql -qX "$admin/postgres" -c 'alter role fencepost superuser'
}

cat >"$tmp/fencepost.yml" <<YML
listen: 127.0.0.1:$fence_port
admin: 127.0.0.1:$(free_port)
upstream: {address: '127.0.0.1:$pg_port'}
# Tests leave statements running that a grant has to end first.
startup_wait: 20s
lease: {linger: 20s, grace: 1s}
unfenced: allow
YML
FENCEPOST_CONTROL_PASSWORD=suites bin/fencepost serve --config "$tmp/fencepost.yml" >"$tmp/fencepost.log" 2>&1 &
pids+=($!)
await psql -qAt "postgres://postgres@127.0.0.1:$fence_port/postgres" -c 'select 1'

# sources MODULE prints the directory of the module's sources.
sources() { (cd test/drivers/go && go mod download "$1" && go list -m -f '{{.Dir}}' "$1"); }

prepare_pgx() {
	dir=$(sources github.com/jackc/pgx/v5)
	packages=(. ./pgconn/... ./pgxpool/... ./stdlib/... ./pgtype/... ./tracelog ./multitracer)
	database pgx_test
	psql -qX "$admin/pgx_test" -f "$dir/testsetup/postgresql_setup.sql" 2>/dev/null
}

run_pgx() {
	local at="host=127.0.0.1 port=$1 dbname=pgx_test password=secret sslmode=disable fencepost.resource=suites fencepost.worker=pgx"
	PGX_TEST_DATABASE="$at user=pgx_md5" PGX_TEST_TCP_CONN_STRING="$at user=pgx_md5" \
		PGX_TEST_MD5_PASSWORD_CONN_STRING="$at user=pgx_md5" PGX_TEST_PLAIN_PASSWORD_CONN_STRING="$at user=pgx_pw" \
		PGX_TEST_SCRAM_PASSWORD_CONN_STRING="$at user=pgx_scram channel_binding=disable" \
		go test -C "$dir" -json -count=1 -timeout 10m "${@:2}" "${packages[@]}"
}

prepare_pq() {
	dir=$(sources github.com/lib/pq)
	packages=(. ./hstore)
	psql -qX "$admin/postgres" -c 'create role pqgo superuser login'
	database pqgo
	sed -n '/^create role/,$p' "$dir/testdata/postgres/docker-entrypoint-initdb.d/20-config.sql" | psql -qX "$admin/postgres"
}

run_pq() {
	PGHOST=127.0.0.1 PGPORT=$1 PGUSER=pqgo PGDATABASE=pqgo PGOPTIONS='-c fencepost.resource=suites -c fencepost.worker=pq' \
		go test -C "$dir" -json -count=1 -timeout 10m -skip '^TestSSL' "${@:2}" "${packages[@]}"
}

# results FILE ACTION prints the tests of a run with that result, without subtests.
results() { sed -nE 's|^\{.*"Action":"'"$2"'","Package":"([^"]*)","Test":"([^"/]*)".*|\1.\2|p' "$1" | sort -u; }

# differences SUITE prints the tests that pass directly but not through Fencepost,
# even when they run again one by one: some wait for only 100 ms, and one that panics
# ends all others.
differences() {
	local lost again
	lost=$(comm -23 <(results "$tmp/direct.json" pass) <(results "$tmp/fenced.json" pass))
	if [ -z "$lost" ]; then return; fi
	again="^($(sed 's/.*\.//' <<<"$lost" | paste -sd '|'))\$"
	"run_$1" "$fence_port" -parallel 1 -run "$again" >"$tmp/again.json" 2>&1 || true
	comm -23 <(echo "$lost") <(results "$tmp/again.json" pass) |
		while read -r name; do grep -q "^$1 $name " <<<"$known" || echo "$name"; done
}

failed=
for suite in $suites; do
	"prepare_$suite"
	"run_$suite" "$pg_port" >"$tmp/direct.json" 2>&1 || true
	"run_$suite" "$fence_port" >"$tmp/fenced.json" 2>&1 || true
	echo "$suite: directly $(results "$tmp/direct.json" pass | wc -l) tests pass, through Fencepost $(results "$tmp/fenced.json" pass | wc -l)"
	if [ -z "$(results "$tmp/direct.json" pass)" ]; then
		tail -20 "$tmp/direct.json" >&2
		exit 1
	fi
	lost=$(differences "$suite")
	for name in $lost; do
		echo "$suite: $name passes directly, but not through Fencepost:"
		grep -h "\"Test\":\"${name##*.}[\"/].*\"Output\"" "$tmp/again.json" | tail -20 || true
		failed=yes
	done
done
if grep -E '"level":"(error|dpanic|panic|fatal)"|^panic|ZF004|unexpected reply' "$tmp/fencepost.log"; then
	echo "Fencepost's log should have none of these" >&2
	failed=yes
fi
[ -z "$failed" ]
