# Sourced after scripts/servers.sh. Provides Docker Compose as the function compose, and a
# Docker engine: the one that runs, or one that is started here and ends with the script.
# shellcheck shell=bash

if docker compose version >/dev/null 2>&1; then
	compose() { docker compose "$@"; }
else
	if [ ! -x .cache/docker-compose ]; then
		echo "building Docker Compose (some minutes, once)"
		mkdir -p .cache
		(cd scripts/compose && go build -buildvcs=false -trimpath -ldflags "-s -w" -o ../../.cache/docker-compose.new github.com/docker/compose/v2/cmd)
		mv .cache/docker-compose.new .cache/docker-compose
	fi
	compose() { .cache/docker-compose "$@"; }
fi

# What clean_network restores. Empty if there was an engine, or its bridge, before.
forwarding= policy=

start_engine() {
	if docker info >/dev/null 2>&1; then return; fi
	[ "$(id -u)" -eq 0 ] || { echo "${0##*/}: no Docker engine runs, and starting one needs root" >&2; exit 1; }
	if [ ! -e /sys/class/net/docker0 ]; then
		forwarding=$(cat /proc/sys/net/ipv4/ip_forward) policy=$(iptables --list-rules FORWARD | head -n 1)
	fi
	export DOCKER_HOST=unix://$tmp/docker.sock
	# containerd may write its stacks to the temporary directory when it is stopped. Ctrl-C must
	# not reach the engine, which removes the containers before it is stopped.
	TMPDIR=$tmp setsid dockerd --data-root "$tmp/docker" --exec-root "$tmp/docker-run" --pidfile "$tmp/docker.pid" --host "$DOCKER_HOST" >"$tmp/docker.log" 2>&1 &
	pids+=($!)
	await docker info
}

# clean_network removes what a stopped engine leaves: its bridge, its firewall rules, and
# the forwarding of packets.
clean_network() {
	[ -n "$forwarding" ] || return 0
	ip link delete docker0
	iptables-save | grep -v -e DOCKER -e docker0 | iptables-restore
	# shellcheck disable=SC2086 # two words or more
	iptables $policy
	echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
}
