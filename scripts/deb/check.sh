#!/usr/bin/env bash
# Install a package of Fencepost, check its unit and its files, start it as the unit does
# against a PostgreSQL server of its own, and purge it again.
set -euo pipefail
cd "$(dirname "$0")/../.."

deb=$1
[ "$(id -u)" -eq 0 ] || { echo "${0##*/}: needs root, to install the package" >&2; exit 1; }
if dpkg-query -W fencepost >/dev/null 2>&1; then
	echo "${0##*/}: the package fencepost is installed here already: remove it first" >&2
	exit 1
fi
bin=$(scripts/setup.sh postgres-bin)
. scripts/servers.sh
purge() {
	dpkg --purge fencepost >/dev/null 2>&1 || true
	cleanup
}
trap purge EXIT
fail() {
	echo "${0##*/}: $*" >&2
	exit 1
}

DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$PWD/$deb"
[ "$(stat -c '%U:%G %a' /etc/fencepost/fencepost.yml)" = "root:fencepost 640" ] || fail "fencepost.yml has other rights"
[ "$(stat -c '%U %a' /etc/default/fencepost)" = "root 600" ] || fail "/etc/default/fencepost has other rights"
unit=/usr/lib/systemd/system/fencepost.service
if command -v systemd-analyze >/dev/null; then
	systemd-analyze verify "$unit" || fail "systemd refuses the unit"
fi
fencepost version

# What the package has besides the program is what this tree and the program have, and anybody may read it.
share=/usr/share
while read -r file own; do
	# shellcheck disable=SC2086 # own is a command with its arguments
	$own | cmp -s - "$share/$file" && [ "$(stat -c '%U:%G %a' "$share/$file")" = "root:root 644" ] || fail "$share/$file is missing, has other rights or is another"
done <<FILES
bash-completion/completions/fencepost fencepost completion bash
zsh/vendor-completions/_fencepost fencepost completion zsh
fish/vendor_completions.d/fencepost.fish fencepost completion fish
fencepost/prometheus/fencepost.rules.yml cat etc/prometheus/fencepost.rules.yml
fencepost/grafana/fencepost.json cat etc/grafana/fencepost.json
doc/fencepost/README.md cat README.md
doc/fencepost/ARCHITECTURE.md cat ARCHITECTURE.md
$(find docs -type f | sed 's,.*,doc/fencepost/& cat &,')
FILES
fencepost man | cmp -s - <(gzip -dc "$share/man/man1/fencepost.1.gz") || fail "the manual page is missing or is another"

# A server with a database, whose fence the installed program creates.
dir=$tmp/server
port=$(free_port)
"${unprivileged[@]}" mkdir "$dir"
(
	cd "$dir"
	"${unprivileged[@]}" "$bin/initdb" -D "$dir/data" -U postgres -A trust --no-sync >/dev/null
	exec "${unprivileged[@]}" "$bin/postgres" -D "$dir/data" -h 127.0.0.1 -p "$port" -k "" -c fsync=off >"$dir/postgres.log" 2>&1
) &
pids+=($!)
at=postgres://postgres@127.0.0.1:$port/postgres
await psql -qX "$at" -c 'select 1'
FENCEPOST_CONTROL_PASSWORD=deb fencepost migrate --dsn "$at"
psql -qX "$at" -c 'create table work (what text)' -c 'create role worker login' -c 'grant all on work to worker'

# The command of the unit, as its user, with what the environment file would set.
read -ra start < <(sed -n 's/^ExecStart=//p' "$unit")
listen=127.0.0.1:$(free_port)
admin=127.0.0.1:$(free_port)
id=$(id -u fencepost) group=$(id -g fencepost)
env -i PATH="$PATH" FENCEPOST_LISTEN="$listen" FENCEPOST_ADMIN="$admin" FENCEPOST_UPSTREAM_ADDRESS="127.0.0.1:$port" FENCEPOST_CONTROL_PASSWORD=deb \
	setpriv --reuid="$id" --regid="$group" --clear-groups --no-new-privs "${start[@]}" >"$tmp/fencepost.log" 2>&1 &
served=$!
pids+=("$served")
await fencepost status --admin "$admin"
psql -qX "postgres://worker@$listen/postgres?options=-cfencepost.resource%3Dbilling%20-cfencepost.worker%3Dw%20-cfencepost.campaign%3Dwait" \
	-c "insert into work values ('done')"
[ "$(psql -qAtX "$at" -c 'select worker from fencepost.status')" = w ] || fail "the worker was granted no epoch"
kill -TERM "$served"
wait "$served" || fail "the service ended with $?"
pids=("${pids[0]}")

dpkg --purge fencepost
[ ! -e /etc/fencepost/fencepost.yml ] && [ ! -e "$unit" ] && [ ! -e "$share/fencepost" ] && ! getent passwd fencepost >/dev/null || fail "something is left of the package"
echo "deb: installed, started as its unit does, and purged"
