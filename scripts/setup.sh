#!/usr/bin/env bash
# Install what a make target needs and this machine lacks, and nothing else.
#
#   scripts/setup.sh go          check that Go is installed (apt has no recent enough version)
#   scripts/setup.sh cc          C compiler, for the Postgres grammar that Fencepost links
#   scripts/setup.sh postgres    PostgreSQL server and client programs
#   scripts/setup.sh node        node and npm, which fetch other versions of PostgreSQL
#   scripts/setup.sh drivers     the drivers of test/drivers that apt provides, and the runtimes of the others
#   scripts/setup.sh redis       Redis for tests and the demo, and its Python client for an example
#   scripts/setup.sh java        a Java runtime, for ZooKeeper
#   scripts/setup.sh lists       the newest package lists of apt
#   scripts/setup.sh pgbouncer   PgBouncer, for a test and for the benchmark, which compares with it
#   scripts/setup.sh haproxy     HAProxy, with which the benchmark compares
#   scripts/setup.sh docker      Docker's engine and client
#   scripts/setup.sh debootstrap what makes a Debian root directory
#   scripts/setup.sh qemu        what runs programs for arm64
#   scripts/setup.sh chromium    Chromium, for the tests of the pages
#   scripts/setup.sh spin        SPIN, which searches the model in proof
#
# scripts/setup.sh postgres-bin prints the directory of the server programs.
#
# It supports apt only. On other systems install the programs by hand: programs that
# are already installed are used as they are.
set -euo pipefail

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif have sudo; then
		sudo "$@"
	else
		say "need root (or sudo) to run: $*"
		exit 1
	fi
}

# install PACKAGE... installs packages by apt, quietly. It updates the package lists
# only if the stored ones are not sufficient.
install() {
	if ! have apt-get; then
		say "this system has no apt-get: install by hand: $*"
		exit 1
	fi
	say "installing $*"
	local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300)
	if ! as_root "${apt[@]}" install "$@" >/dev/null 2>&1; then
		as_root "${apt[@]}" update >&2
		as_root "${apt[@]}" install "$@" >&2
	fi
}

# postgres_bin prints the newest directory that contains the server's programs.
postgres_bin() {
	local dirs=() dir
	if [ -n "${FENCEPOST_TEST_PG_BIN:-}" ]; then dirs+=("$FENCEPOST_TEST_PG_BIN"); fi
	if have pg_config; then dirs+=("$(pg_config --bindir)"); fi
	while IFS= read -r dir; do dirs+=("$dir"); done \
		< <(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -rV)
	for dir in "${dirs[@]}"; do
		if [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ]; then
			printf '%s\n' "$dir"
			return
		fi
	done
	return 1
}

setup_postgres() {
	if postgres_bin >/dev/null && have psql; then return; fi
	# Keep Debian from creating and starting a cluster of its own.
	if [ ! -e /etc/postgresql-common/createcluster.conf ] && have apt-get; then
		as_root mkdir -p /etc/postgresql-common/createcluster.d
		printf 'create_main_cluster = false\n' |
			as_root tee /etc/postgresql-common/createcluster.d/fencepost.conf >/dev/null
	fi
	install postgresql postgresql-client
	postgres_bin >/dev/null || { say "no PostgreSQL server programs found after the installation"; exit 1; }
}

setup_go() {
	if have go && go version >/dev/null; then return; fi
	say "Go 1.21 or newer is needed (it fetches the version in go.mod by itself): https://go.dev/dl"
	exit 1
}

setup_cc() {
	have "${CC:-gcc}" || install gcc libc6-dev
}

setup_node() {
	if have node && have npm; then return; fi
	install nodejs npm
}

setup_drivers() {
	setup_postgres # for psql
	setup_node
	local missing=()
	/usr/bin/python3 -c 'import psycopg, psycopg_pool' 2>/dev/null || missing+=(python3-psycopg python3-psycopg-pool)
	[ -e /usr/share/java/postgresql.jar ] || missing+=(libpostgresql-jdbc-java)
	have javac || missing+=(default-jdk-headless)
	/usr/bin/python3 -c 'import asyncpg' 2>/dev/null || missing+=(python3-asyncpg)
	/usr/bin/python3 -c 'import sqlalchemy, psycopg2' 2>/dev/null || missing+=(python3-sqlalchemy python3-psycopg2)
	[ -e /usr/share/java/HikariCP.jar ] || missing+=(libhikaricp-java)
	[ -e /usr/share/java/slf4j-nop.jar ] || missing+=(libslf4j-java)
	have ruby && ruby -e 'require "active_record"; require "pg"' 2>/dev/null || missing+=(ruby ruby-activerecord ruby-pg)
	[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
}

setup_redis() {
	local missing=()
	have redis-server || missing+=(redis-server)
	/usr/bin/python3 -c 'import redis' 2>/dev/null || missing+=(python3-redis)
	[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
}

setup_java() {
	have java || install default-jre-headless
}

setup_lists() {
	as_root apt-get -qq update >&2
}

setup_pgbouncer() {
	have pgbouncer || [ -x /usr/sbin/pgbouncer ] || install pgbouncer
}

setup_haproxy() {
	have haproxy || [ -x /usr/sbin/haproxy ] || install haproxy
}

setup_docker() {
	if have docker && have dockerd && have ip; then return; fi
	install docker.io iproute2
}

setup_debootstrap() {
	have debootstrap || [ -x /usr/sbin/debootstrap ] || install debootstrap
}

setup_chromium() {
	have chromium || install chromium
}

setup_spin() {
	have spin || install spin
}

setup_qemu() {
	have qemu-aarch64 || install qemu-user
}

[ $# -gt 0 ] || { sed -n '2,24s/^# \{0,1\}//p' "$0" >&2; exit 2; }
for what in "$@"; do
	if [ "$what" = postgres-bin ]; then
		postgres_bin
	elif declare -F "setup_$what" >/dev/null; then
		"setup_$what"
	else
		say "do not know how to set up $what"
		exit 2
	fi
done
