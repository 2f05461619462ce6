#!/usr/bin/env bash
# Install the drivers that test/drivers needs: by apt (scripts/setup.sh drivers), and
# in .cache/drivers those for node, in the versions of their package-lock.json,
# SQLAlchemy 2, and what apt supplies of PHP, Perl, ODBC and Django, which is unpacked there.
# The drivers for Go are fetched when their program is built.
#
#   scripts/drivers.sh             install what is missing
#   scripts/drivers.sh versions    print the versions that the tests use
set -euo pipefail
cd "$(dirname "$0")/.."

home=$PWD/.cache/drivers/node
modules=$PWD/.cache/drivers/python
unpacked=$PWD/.cache/drivers/apt
lock=test/drivers/node/package-lock.json

bring() {
	scripts/setup.sh drivers
	alchemy
	unpack
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

# unpack fetches packages whose names have versions in them, with those libraries that a system may lack.
unpack() {
	if [ -d "$unpacked" ]; then return; fi
	echo "fetching PHP, DBD::Pg, psqlODBC and Django" >&2
	rm -rf "$unpacked.new"
	mkdir -p "$unpacked.new"
	apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
		php-cli php-pgsql libdbd-pg-perl odbc-postgresql python3-pyodbc python3-django |
		grep -xE 'php[0-9.]+-(cli|common|pgsql)|lib(dbi|dbd-pg)-perl|odbc-postgresql|lib(argon2-1|edit2|ltdl7|odbc.*|pcre2-8-0|sodium23|xml2)|python3-(pyodbc|django|asgiref|sqlparse|tz)' |
		sort -u | xargs scripts/unpack.sh "$unpacked.new"
	ln -s "$(basename "$unpacked.new"/usr/bin/php?.?)" "$unpacked.new/usr/bin/php"
	/usr/bin/python3 -m compileall -q "$unpacked.new/usr/lib/python3/dist-packages"
	mv "$unpacked.new" "$unpacked"
}

# alchemy fetches SQLAlchemy 2, which Debian 12 does not have: the packages of Debian 13, which run
# with any Python, from the mirror that apt uses, or from the Python Package Index.
alchemy() {
	if [ -d "$modules" ]; then return; fi
	echo "fetching SQLAlchemy 2" >&2
	local new=$modules.new mirror
	for mirror in $(apt-get indextargets --format '$(REPO_URI)' | sort -u); do
		rm -rf "$new"
		mkdir -p "$new"
		if alchemy_from "$mirror" "$new"; then
			# The tests keep no byte code, so that each program would compile it anew.
			/usr/bin/python3 -m compileall -q "$new/usr/lib/python3/dist-packages"
			mv "$new/usr/lib/python3/dist-packages" "$modules"
			rm -rf "$new"
			return
		fi
	done
	rm -rf "$new"
	/usr/bin/python3 -m pip install --quiet --no-deps --target "$modules" SQLAlchemy==2.0.40 typing_extensions==4.13.2
}

alchemy_from() { # a mirror, and the directory to unpack to
	local path hash
	while read -r path hash; do
		/usr/lib/apt/apt-helper download-file "$1$path" "$2/package.deb" "SHA256:$hash" >/dev/null 2>&1 || return 1
		dpkg-deb -x "$2/package.deb" "$2" || return 1
		rm "$2/package.deb"
	done <<-END
		pool/main/s/sqlalchemy/python3-sqlalchemy_2.0.40+ds1-1_all.deb 207640cf7bd30292d892406c4cf96c8784b09b21ec9e2fedabb0cab3fd34eb73
		pool/main/p/python-typing-extensions/python3-typing-extensions_4.13.2-1_all.deb b67662f211c35c17c74a0725bc7c8ffc3b126c650e2a2525593adee06f2bbf69
	END
}

versions() {
	psql --version
	(cd test/drivers/go && go list -m github.com/jackc/pgx/v5 github.com/lib/pq)
	/usr/bin/python3 -c 'import psycopg, psycopg_pool; print("psycopg", psycopg.__version__, "with psycopg_pool", psycopg_pool.__version__)'
	/usr/bin/python3 -c 'import asyncpg; print("asyncpg", asyncpg.__version__)'
	/usr/bin/python3 -c 'import sqlalchemy, psycopg2; print("SQLAlchemy", sqlalchemy.__version__, "with psycopg2", psycopg2.__version__)'
	PYTHONPATH=$modules /usr/bin/python3 -c 'import sqlalchemy, psycopg; print("SQLAlchemy", sqlalchemy.__version__, "with psycopg", psycopg.__version__)'
	node -p '"node " + process.version'
	NODE_PATH=$home/node_modules node -p '["pg", "pg-cursor", "pg-copy-streams", "postgres", "knex", "pg-promise", "sequelize", "typeorm"].map((name) =>
		name + " " + JSON.parse(require("fs").readFileSync(process.env.NODE_PATH + "/" + name + "/package.json")).version).join("\n")'
	# It prints its version and ends with code 1.
	{ java -cp /usr/share/java/postgresql.jar org.postgresql.util.PGJDBCMain 2>/dev/null || true; } | grep '^PostgreSQL'
	(cd /usr/share/java && echo HikariCP-*.jar)
	java -version 2>&1 | sed 1q
	"$unpacked/usr/bin/php" -r 'echo "PDO with PHP ", PHP_VERSION, "\n";'
	PERL5LIB=$(echo "$unpacked"/usr/lib/*/perl5/5.*) perl -MDBD::Pg -e 'print "DBD::Pg $DBD::Pg::VERSION with DBI $DBI::VERSION\n"'
	PYTHONPATH=$unpacked/usr/lib/python3/dist-packages /usr/bin/python3 -c 'import django; print("Django", django.__version__)'
	ruby -e 'require "active_record"; require "pg"; puts "ActiveRecord #{ActiveRecord::VERSION::STRING} with pg #{PG::VERSION}"'
}

case ${1:-bring} in
bring) bring ;;
versions) versions ;;
*) sed -n 2,7p "$0" >&2; exit 2 ;;
esac
