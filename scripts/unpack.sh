#!/usr/bin/env bash
# Fetch packages by apt, and unpack them into a directory without installing them: what they
# require is not installed either, and no service of theirs is started.
#
#   scripts/unpack.sh DIRECTORY PACKAGE...
set -euo pipefail
root=$(realpath "$1")
shift
cd "$(dirname "$0")/.."

if ! command -v apt-get >/dev/null; then
	echo "${0##*/}: this system has no apt-get to fetch $*: put its programs into PATH instead" >&2
	exit 1
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 0777 "$tmp" # apt downloads as a user of its own
fetch() { (cd "$tmp" && apt-get -qq download "$@"); }
if ! fetch "$@" >/dev/null 2>&1; then
	scripts/setup.sh lists
	fetch "$@"
fi
for package in "$tmp"/*.deb; do dpkg-deb -x "$package" "$root"; done
