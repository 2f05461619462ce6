#!/usr/bin/env bash
# Play docker-compose.yml on a Docker engine: freeze the leader, kill services, stop
# Postgres and Consul, and use each profile. Base images that the engine does not have are replaced by
# stand-ins, so no image registry is needed.
#
#   scripts/compose/check.sh [VERSION]
#   SCENES="takeover crashes" scripts/compose/check.sh    after the first scene, only these
set -euo pipefail
cd "$(dirname "$0")/../.."

export VERSION=${1:-devel} REVISION=0123456789abcdef
scripts/setup.sh docker
. scripts/servers.sh
. scripts/compose/engine.sh
. scripts/compose/stand-ins.sh

# A project and ports of its own: others may be running here.
export COMPOSE_PROJECT_NAME=fencepost-test COMPOSE_PROGRESS=plain
PROXY_PORT=$(free_port) ADMIN_PORT=$(free_port) CONSUL_PORT=$(free_port) PROMETHEUS_PORT=$(free_port)
export PROXY_PORT ADMIN_PORT CONSUL_PORT PROMETHEUS_PORT

had_image=
end() {
	local status=$?
	if [ "$status" -ne 0 ]; then
		compose --profile '*' ps --all || true
		compose --profile '*' logs --tail 15 || true
	fi >&2
	compose --profile '*' down --volumes --timeout 5 >"$tmp/down.log" 2>&1 || true
	remove_stand_ins
	[ -n "$had_image" ] || docker image rm fencepost >/dev/null 2>&1 || true
	docker image rm fencepost-lab fencepost-test-arm64 fencepost-test-rebuilt fencepost-test-worker-{python,node,java} >/dev/null 2>&1 || true
	cleanup
	clean_network
}
trap end EXIT

step() { printf '%4ss  %s\n' "$SECONDS" "$*"; }
fail() {
	echo "${0##*/}: $*" >&2
	exit 1
}
# within SECONDS WHAT COMMAND... waits until the command succeeds.
within() {
	local limit=$1 what=$2 start=$SECONDS
	shift 2
	until "$@" >/dev/null 2>&1; do
		[ $((SECONDS - start)) -lt "$limit" ] || fail "not within $limit s: $what"
		sleep 0.2
	done
	step "$what ($((SECONDS - start)) s)"
}

sql() { compose exec -T postgres psql -qAtX -U postgres -d shop -c "$1"; }
container() { compose ps --all --quiet "$1"; }
inspect() { docker inspect --format "$2" "$(container "$1")"; }
logs() { compose logs --no-log-prefix "$@" 2>&1; }
says() { logs "$1" | grep -E "$2" >/dev/null; } # not -q, which would end the logs early
health() { [ "$(inspect "$1" '{{.State.Health.Status}}')" = "$2" ]; }
charges() { sql "SELECT count(*) FROM charges WHERE worker LIKE '${1:-%}'"; }
charges_exceed() { [ "$(charges "$2")" -gt "$1" ]; }
writes_go_on() {
	local before
	before=$(charges) && within "$1" "$2" charges_exceed "$before" %
}

# http PORT PATH PATTERN asks an address that is published.
http() {
	local answer
	answer=$(
		exec 3<>"/dev/tcp/127.0.0.1/$1"
		printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3
		cat <&3
	) && grep -E "$3" <<<"$answer" >/dev/null
}
# restarts and confined assert what docker-compose.yml gives each service.
restarts() {
	local service
	for service; do
		[ "$(inspect "$service" '{{.HostConfig.RestartPolicy.Name}}')" = unless-stopped ] || fail "$service is not restarted when its process dies"
	done
}
confined() {
	local service status
	restarts "$@"
	for service; do
		status=$(cat "/proc/$(inspect "$service" '{{.State.Pid}}')/status")
		[[ $status =~ Uid:[[:space:]]+([0-9]+) && ${BASH_REMATCH[1]} != 0 ]] || fail "$service runs as root"
		[[ $status =~ CapBnd:[[:space:]]+0+[[:space:]] && $status =~ CapEff:[[:space:]]+0+[[:space:]] ]] || fail "$service has capabilities"
		[[ $status =~ NoNewPrivs:[[:space:]]+1 ]] || fail "$service may gain privileges"
		if [ "$(inspect "$service" '{{.Config.Image}}')" = fencepost ]; then
			[ "$(inspect "$service" '{{.HostConfig.ReadonlyRootfs}}')" = true ] || fail "$service can write to its image"
		fi
	done
	step "not root, no capability, restarted: $*"
}

. scripts/compose/image.sh
. scripts/compose/scenes.sh

start_engine
make_stand_ins
step "the engine and the base images are there"
if ! missing fencepost; then had_image=yes; fi
for scene in files image ${SCENES:-takeover crashes readiness consul_away unfenced observability worker_python worker_node worker_java rebuild arm64 kept two_proxies embedded secure}; do
	echo "== $scene"
	"$scene"
done
compose --profile '*' down --volumes --timeout 5 >"$tmp/down.log" 2>&1
for kind in container volume network; do
	left=$(docker "$kind" ls --quiet --filter label=com.docker.compose.project="$COMPOSE_PROJECT_NAME" $([ "$kind" != container ] || echo --all))
	[ -z "$left" ] || fail "down left a $kind: $left"
done
step "down left no container, volume or network"
