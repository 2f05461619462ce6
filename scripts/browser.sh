#!/usr/bin/env bash
# Install what the tests of the pages need: Chromium by apt, and playwright-core in .cache/browser,
# in the version of test/playground/package-lock.json. It downloads no browser.
#
#   scripts/browser.sh                   install what is missing
#   scripts/browser.sh with COMMAND...   run a command whose Node finds playwright-core
set -euo pipefail
cd "$(dirname "$0")/.."

home=$PWD/.cache/browser
lock=test/playground/package-lock.json

bring() {
	scripts/setup.sh node chromium
	if cmp -s "$lock" "$home/package-lock.json" && [ -d "$home/node_modules" ]; then return; fi
	echo "fetching playwright-core" >&2
	rm -rf "$home"
	mkdir -p "$home"
	cp test/playground/package.json "$home"
	# The lock file is copied last: it marks the installation as complete.
	cp "$lock" "$home/npm-shrinkwrap.json"
	(cd -P "$home" && npm ci --ignore-scripts --no-audit --no-fund --silent) # -P, because .cache may be a link
	cp "$lock" "$home/package-lock.json"
}

case ${1:-bring} in
bring) bring ;;
with)
	shift
	NODE_PATH=$home/node_modules exec "$@"
	;;
*) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
