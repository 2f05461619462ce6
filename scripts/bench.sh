#!/usr/bin/env bash
# Compare pgbench through Fencepost (fenced, also with a guarded and stamped table, and
# unfenced), through PgBouncer in session mode, and with no proxy. Rounds are interleaved,
# so that changes of the machine's load affect all of them equally; the table shows
# medians and ratios.
#
#   make bench
#   ROUNDS=5 SECONDS_PER_RUN=10 CLIENTS=8 MODES="prepared simple" make bench
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${ROUNDS:-5}
duration=${SECONDS_PER_RUN:-6}
clients=${CLIENTS:-8}
modes=${MODES:-prepared simple}
kinds=(direct pgbouncer unfenced fenced guarded)

bin=$(scripts/setup.sh postgres-bin)
pgbouncer=$(command -v pgbouncer || echo /usr/sbin/pgbouncer)
. scripts/servers.sh

pg_port=$(free_port)
bouncer_port=$(free_port)
fence_port=$(free_port)
admin_port=$(free_port)

(cd "$tmp" && "${unprivileged[@]}" "$bin/initdb" -D "$tmp/data" -U postgres -A trust --no-locale -E UTF8 >/dev/null)
(cd "$tmp" && exec "${unprivileged[@]}" "$bin/postgres" -D "$tmp/data" -h 127.0.0.1 -p "$pg_port" -k "" \
	-c shared_buffers=256MB -c max_connections=200 -c synchronous_commit=off -c checkpoint_timeout=1h -c max_wal_size=4GB) \
	>"$tmp/postgres.log" 2>&1 &
pids+=($!)
await psql -qAt "postgres://postgres@127.0.0.1:$pg_port/postgres" -c 'select 1'

psql -q "postgres://postgres@127.0.0.1:$pg_port/postgres" -c 'create role bench login' -c 'create database bench owner bench'
FENCEPOST_CONTROL_PASSWORD=bench bin/fencepost migrate --dsn "postgres://postgres@127.0.0.1:$pg_port/bench" >/dev/null
for table in counters guarded; do
	psql -q "postgres://bench@127.0.0.1:$pg_port/bench" \
		-c "create table $table (id int primary key, n int not null)" \
		-c "insert into $table select i, 0 from generate_series(1, 10000) i" -c "analyze $table"
done
psql -q "postgres://fencepost@127.0.0.1:$pg_port/bench" -c "select fencepost.register('guarded')" >/dev/null
bin/fencepost guard add --dsn "postgres://postgres@127.0.0.1:$pg_port/bench" --resource guarded --table public.guarded --stamp fence_epoch >/dev/null

cat >"$tmp/pgbouncer.ini" <<INI
[databases]
bench = host=127.0.0.1 port=$pg_port dbname=bench
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $bouncer_port
unix_socket_dir =
auth_type = trust
auth_file = $tmp/users.txt
pool_mode = session
default_pool_size = 100
max_client_conn = 200
INI
echo '"bench" ""' >"$tmp/users.txt"
(cd "$tmp" && exec "${unprivileged[@]}" "$pgbouncer" -q "$tmp/pgbouncer.ini") >"$tmp/pgbouncer.log" 2>&1 &
pids+=($!)

cat >"$tmp/fencepost.yml" <<YML
listen: 127.0.0.1:$fence_port
admin: 127.0.0.1:$admin_port
upstream:
  address: 127.0.0.1:$pg_port
unfenced: allow
log:
  level: warn
YML
FENCEPOST_CONTROL_PASSWORD=bench bin/fencepost serve --config "$tmp/fencepost.yml" >"$tmp/fencepost.log" 2>&1 &
pids+=($!)
await psql -qAt "postgres://bench@127.0.0.1:$bouncer_port/bench" -c 'select 1'
await psql -qAt "postgres://bench@127.0.0.1:$fence_port/bench" -c 'select 1'

for table in counters guarded; do
	cat >"$tmp/$table.update.sql" <<SQL
\\set id random(1, 10000)
UPDATE $table SET n = n + 1 WHERE id = :id;
SQL
	cat >"$tmp/$table.select.sql" <<SQL
\\set id random(1, 10000)
SELECT n FROM $table WHERE id = :id;
SQL
done

# one KIND MODE SCRIPT prints transactions per second.
one() {
	local port options="" table=counters
	case $1 in
	direct) port=$pg_port ;;
	pgbouncer) port=$bouncer_port ;;
	unfenced) port=$fence_port ;;
	fenced) port=$fence_port options="-c fencepost.resource=bench -c fencepost.worker=bench:$$ -c fencepost.campaign=wait" ;;
	guarded) port=$fence_port options="-c fencepost.resource=guarded -c fencepost.worker=bench:$$ -c fencepost.campaign=wait" table=guarded ;;
	esac
	PGOPTIONS="$options" pgbench -n -h 127.0.0.1 -p "$port" -U bench -M "$2" -c "$clients" -j 2 -T "$duration" -f "$tmp/$table.$3.sql" bench 2>"$tmp/pgbench.err" |
		awk '/^tps/ {print $3}' || { cat "$tmp/pgbench.err" >&2; return 1; }
}

median() { sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

printf '%s rounds of %s s, %s clients; medians of transactions per second\n\n' "$rounds" "$duration" "$clients"
printf '%-18s %10s %10s %10s %10s %10s %18s %18s %18s\n' "" "${kinds[@]}" "unfenced/pgbouncer" "fenced/pgbouncer" "guarded/fenced"
for mode in $modes; do
	for script in update select; do
		rm -f "$tmp"/result.*
		for _ in $(seq "$rounds"); do
			for kind in "${kinds[@]}"; do one "$kind" "$mode" "$script" >>"$tmp/result.$kind"; done
		done
		row=()
		for kind in "${kinds[@]}"; do row+=("$(median <"$tmp/result.$kind")"); done
		awk -v name="$script, $mode" -v d="${row[0]}" -v p="${row[1]}" -v u="${row[2]}" -v f="${row[3]}" -v g="${row[4]}" \
			'BEGIN {printf "%-18s %10.0f %10.0f %10.0f %10.0f %10.0f %18.2f %18.2f %18.2f\n", name, d, p, u, f, g, u / p, f / p, g / f}'
	done
done
