#!/bin/sh
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
if [ "$1" = purge ]; then
	deluser --quiet --system fencepost >/dev/null 2>&1 || true
fi
