#!/bin/sh
# The entrypoint of the stand-in for the image postgres: it creates a cluster at the first
# start, runs /docker-entrypoint-initdb.d before anybody can connect by TCP, and then
# becomes the server.
set -eu

if [ "$1" = postgres ] && [ "$(id -u)" -eq 0 ]; then
	install -d -o postgres -g postgres /run/postgresql /var/lib/postgresql
	exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
	if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then POSTGRES_PASSWORD=$(cat "$POSTGRES_PASSWORD_FILE"); fi
	printf '%s\n' "$POSTGRES_PASSWORD" >/tmp/password
	initdb --username=postgres --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256 "$PGDATA"
	rm /tmp/password
	echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
	printf "%s\n" "unix_socket_directories = '/run/postgresql'" "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
	pg_ctl --pgdata="$PGDATA" --wait --options="-c listen_addresses=''" start
	for file in /docker-entrypoint-initdb.d/*.sql; do
		psql --no-psqlrc --quiet --username=postgres --set ON_ERROR_STOP=1 --file="$file"
	done
	pg_ctl --pgdata="$PGDATA" --wait --mode=fast stop
fi
exec "$@"
