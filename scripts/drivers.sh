#!/usr/bin/env bash
# Install the drivers that test/drivers needs: by apt (scripts/setup.sh drivers),
# and those for node, in the versions of their package-lock.json, in
# .cache/drivers/node. The drivers for Go are fetched when their program is built.
#
#   scripts/drivers.sh             install what is missing
#   scripts/drivers.sh versions    print the versions that the tests use
set -euo pipefail
cd "$(dirname "$0")/.."

home=$PWD/.cache/drivers/node
lock=test/drivers/node/package-lock.json

bring() {
	scripts/setup.sh drivers
	if cmp -s "$lock" "$home/package-lock.json" && [ -d "$home/node_modules" ]; then return; fi
	echo "fetching the drivers for node" >&2
	rm -rf "$home"
	mkdir -p "$home"
	cp test/drivers/node/package.json "$home"
	# The lock file is copied last: it marks the installation as complete.
	cp "$lock" "$home/npm-shrinkwrap.json"
	npm ci --prefix "$home" --ignore-scripts --no-audit --no-fund --silent
	cp "$lock" "$home/package-lock.json"
}

versions() {
	psql --version
	(cd test/drivers/go && go list -m github.com/jackc/pgx/v5 github.com/lib/pq)
	/usr/bin/python3 -c 'import psycopg, psycopg_pool; print("psycopg", psycopg.__version__, "with psycopg_pool", psycopg_pool.__version__)'
	/usr/bin/python3 -c 'import asyncpg; print("asyncpg", asyncpg.__version__)'
	/usr/bin/python3 -c 'import sqlalchemy, psycopg2; print("SQLAlchemy", sqlalchemy.__version__, "with psycopg2", psycopg2.__version__)'
	node -p '"node " + process.version'
	NODE_PATH=$home/node_modules node -p '["pg", "pg-cursor", "pg-copy-streams", "postgres"].map((name) =>
		name + " " + JSON.parse(require("fs").readFileSync(process.env.NODE_PATH + "/" + name + "/package.json")).version).join("\n")'
	# It prints its version and ends with code 1.
	{ java -cp /usr/share/java/postgresql.jar org.postgresql.util.PGJDBCMain 2>/dev/null || true; } | grep '^PostgreSQL'
	(cd /usr/share/java && echo HikariCP-*.jar)
	java -version 2>&1 | sed 1q
	ruby -e 'require "active_record"; require "pg"; puts "ActiveRecord #{ActiveRecord::VERSION::STRING} with pg #{PG::VERSION}"'
}

case ${1:-bring} in
bring) bring ;;
versions) versions ;;
*) sed -n 2,7p "$0" >&2; exit 2 ;;
esac
