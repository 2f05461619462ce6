#!/bin/sh
set -e

if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
	systemctl --quiet disable --now fencepost.service || true
fi
