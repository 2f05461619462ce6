# Sourced by scripts that start their own servers. Provides a temporary directory, $tmp,
# and the processes in $pids, both of which are removed at the end; unprivileged,
# free_port and await.
# shellcheck shell=bash

tmp=$(mktemp -d)
chmod 0755 "$tmp"
pids=()

cleanup() {
	local pid
	for pid in "${pids[@]}"; do kill -INT "$pid" 2>/dev/null || true; done
	for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
	rm -rf "$tmp"
}
trap cleanup EXIT

# Neither PostgreSQL nor PgBouncer runs as root.
unprivileged=()
if [ "$(id -u)" -eq 0 ]; then
	user=postgres
	id "$user" >/dev/null 2>&1 || user=nobody
	unprivileged=(setpriv "--reuid=$user" "--regid=$(id -g "$user")" --clear-groups)
	chown "$user" "$tmp"
fi

free_port() {
	local port
	for _ in $(seq 100); do
		port=$((20000 + RANDOM % 10000))
		if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
			echo "$port"
			return
		fi
	done
	return 1
}

# await COMMAND... waits until the command succeeds, for at most a minute.
await() {
	for _ in $(seq 600); do
		if "$@" >/dev/null 2>&1; then return; fi
		sleep 0.1
	done
	echo "${0##*/}: gave up waiting for: $*" >&2
	find "$tmp" -name '*.log' -exec cat {} + >&2
	return 1
}
