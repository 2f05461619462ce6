#!/bin/sh
set -e

if [ "$1" = configure ]; then
	if ! getent passwd fencepost >/dev/null; then
		adduser --system --group --quiet --no-create-home --home /nonexistent --gecos "Fencepost" fencepost
	fi
	# The configuration may hold the password of the control role.
	chown root:fencepost /etc/fencepost/fencepost.yml
	if [ -d /run/systemd/system ]; then
		systemctl daemon-reload
		if [ -n "$2" ]; then # an upgrade: the new program takes over
			systemctl try-reload-or-restart fencepost.service || true
		fi
	fi
	if [ -z "$2" ]; then
		echo "Edit /etc/fencepost/fencepost.yml, run fencepost migrate, and then: systemctl enable --now fencepost"
	fi
fi
