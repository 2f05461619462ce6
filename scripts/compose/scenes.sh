# Sourced by check.sh: what is played. The first scene starts the services of no profile, and
# each of the others except two_proxies and embedded leaves them running.
# shellcheck shell=bash

image() {
	compose up --build --detach >"$tmp/up.log" 2>&1 || { cat "$tmp/up.log" >&2; fail "docker compose up failed"; }
	step "built and started"
	[[ "$(docker run --rm fencepost version)" = "fencepost $VERSION "* ]] || fail "the image has another version than $VERSION"
	[ "$(docker image inspect --format '{{.Config.User}}' fencepost)" = 65532:65532 ] || fail "the image has another user"
	[ "$(docker image inspect --format '{{.Size}}' fencepost)" -lt 40000000 ] || fail "the image has more than 40 MB"
}

takeover() {
	local before
	within 60 "worker-a leads and writes" charges_exceed 0 worker-a
	[ "$(charges worker-b)" = 0 ] || fail "worker-b wrote before worker-a was frozen"
	compose exec -T fencepost fencepost status | grep 'billing.*worker-a' >/dev/null || fail "status does not show that worker-a leads"
	PGPASSWORD=example-shop psql -qAtX -h 127.0.0.1 -p "$PROXY_PORT" -U shop shop -c 'SELECT count(*) FROM charges' >/dev/null
	compose pause worker-a
	within 20 "worker-b took over from the frozen worker-a" charges_exceed 0 worker-b
	before=$(charges worker-a)
	compose unpause worker-a
	within 10 "worker-a shows that it was refused" says worker-a 'FATAL: +ZF001'
	within 10 "the audit log has the refused write" says fencepost '"stale write rejected".*"worker":"worker-a:.*"sqlstate":"ZF001"'
	[ "$(charges worker-a)" = "$before" ] || fail "worker-a wrote after it was superseded"
	[ "$(compose exec -T worker-a id -un)" = postgres ] || fail "worker-a runs as $(compose exec -T worker-a id -un)"
	! says worker-a '^$' || fail "worker-a prints empty lines"
	! says consul 'DEBUG|INFO' || fail "Consul prints its debug log"
}

# Processes are killed from outside: docker compose kill would count as a stop by hand.
crashes() {
	local service pid
	for service in fencepost consul postgres worker-a; do
		pid=$(inspect "$service" '{{.State.Pid}}')
		kill -KILL "$pid"
		within 30 "$service restarted" restarted "$service"
		within 60 "postgres answers" charges
		writes_go_on 90 "a worker writes after $service was killed"
	done
	# A worker writes for some seconds without Consul. The new one is empty until it has the lease.
	within 60 "the new Consul has a lease" compose exec -T consul consul kv get fencepost/shop/billing
	writes_go_on 60 "a worker writes under that lease"
}
restarted() { [ "$(inspect "$1" '{{.RestartCount}} {{.State.Running}}')" = "1 true" ]; }

readiness() {
	within 60 "fencepost is healthy" health fencepost healthy
	compose stop postgres >/dev/null 2>&1
	within 60 "fencepost is unhealthy without postgres" health fencepost unhealthy
	compose start postgres >/dev/null 2>&1
	within 60 "fencepost is healthy again" health fencepost healthy
	writes_go_on 60 "a worker writes again"
}

# Both pairs are frozen in the middle of a charge.
unfenced() {
	compose --profile unfenced up --detach >"$tmp/up.log" 2>&1
	freeze_charging fenced-a
	freeze_charging unfenced-a
	within 30 "fenced-b made the charge of fenced-a" charged_by fenced-b "$(frozen_invoice fenced-a)"
	within 30 "unfenced-b made the charge of unfenced-a" charged_by unfenced-b "$(frozen_invoice unfenced-a)"
	compose unpause fenced-a unfenced-a >/dev/null 2>&1
	within 30 "fenced-a is refused" says fenced-a '"kind":"refused".*"sqlstate":"ZF001"'
	within 30 "unfenced-a charges an invoice for the second time" charged_twice unfenced 1
	charged_twice fenced 0 || fail "the fenced pair charged an invoice twice"
	compose rm --stop --force fenced-a fenced-b unfenced-a unfenced-b >/dev/null 2>&1
}
last_event() { logs "$1" | grep '^{' | tail -n 1; }
charging() { [[ "$(last_event "$1")" = *'"kind":"inserted"'* ]]; }
frozen_invoice() { last_event "$1" | sed -E 's/.*"invoice":([0-9]+).*/\1/'; }
charged_by() { says "$1" "\"kind\":\"charged\",\"invoice\":$2[,}]"; }
charged_twice() { [ "$(sql "SELECT count(*) FROM charged_twice WHERE pair = '$1'")" = "$2" ]; }
# freeze_charging WORKER freezes it between the INSERT and the UPDATE of a charge. If the
# charge ended before the freeze, it tries the next one.
freeze_charging() {
	local try
	for try in 1 2 3 4 5; do
		within 60 "$1 charges an invoice" charging "$1"
		compose pause "$1" >/dev/null 2>&1
		if charging "$1"; then return; fi
		compose unpause "$1" >/dev/null 2>&1
	done
	fail "$1 was not frozen in the middle of a charge in $try tries"
}

# Grafana is left out: there is no stand-in for it.
observability() {
	compose --profile observability up --detach prometheus >"$tmp/up.log" 2>&1
	within 60 "Prometheus scrapes fencepost" prometheus_has "query?query=fencepost_ready" '"instance":"fencepost:6433".*"1"'
	within 60 "Prometheus evaluates the alerts" prometheus_has rules '"name":"FencepostNobodyLeads".*"health":"ok"'
	compose rm --stop --force prometheus >/dev/null 2>&1
}
prometheus_has() {
	local answer
	answer=$(
		exec 3<>"/dev/tcp/127.0.0.1/$PROMETHEUS_PORT"
		printf 'GET /api/v1/%s HTTP/1.0\r\n\r\n' "$1" >&3
		cat <&3
	) && [[ "$answer" =~ $2 ]]
}

# A worker in Java leads when the others have gone, and is superseded while it is frozen.
worker_java() {
	compose --profile java up --build --detach worker-java >"$tmp/up.log" 2>&1 || { cat "$tmp/up.log" >&2; fail "the image of worker-java was not built"; }
	compose stop worker-a worker-b >/dev/null 2>&1
	within 60 "worker-java leads and writes" charges_exceed 0 worker-java
	compose start worker-a >/dev/null 2>&1
	compose pause worker-java >/dev/null 2>&1
	writes_go_on 30 "worker-a took over from the frozen worker-java"
	compose unpause worker-java >/dev/null 2>&1
	within 20 "worker-java shows that it was refused" says worker-java 'connection closed: ZF001'
	compose rm --stop --force worker-java >/dev/null 2>&1
	compose start worker-b >/dev/null 2>&1
}

# The image for another architecture is built by a cross compiler.
arm64() {
	compose --file - build arm64 >"$tmp/arm64.log" 2>&1 <<-'FILE' || { cat "$tmp/arm64.log" >&2; fail "the image for arm64 was not built"; }
		services: {arm64: {image: fencepost-test-arm64, build: {context: ., args: [GOPROXY], platforms: [linux/arm64]}}}
	FILE
	[ "$(docker image inspect --format '{{.Architecture}}' fencepost-test-arm64)" = arm64 ] || fail "the image for arm64 is for another architecture"
	docker create --platform linux/arm64 --name fencepost-test-arm64 fencepost-test-arm64 >/dev/null
	docker cp fencepost-test-arm64:/usr/local/bin/fencepost "$tmp/fencepost-arm64"
	docker rm fencepost-test-arm64 >/dev/null
	# The machine in the header of an ELF file: 183 is AArch64.
	[ "$(od --address-radix=n --format=u2 --skip-bytes=18 --read-bytes=2 "$tmp/fencepost-arm64" | tr -d ' ')" = 183 ] || fail "the program for arm64 is for another architecture"
	step "the image for arm64 was built"
}

two_proxies() {
	compose --profile two-proxies up --detach >"$tmp/up.log" 2>&1
	within 60 "fencepost-2 is healthy" health fencepost-2 healthy
	writes_go_on 60 "a worker writes through fencepost"
	compose kill fencepost >/dev/null 2>&1
	writes_go_on 90 "a worker writes through fencepost-2"
	[ "$(inspect fencepost '{{.State.Running}}')" = false ] || fail "fencepost runs, so nothing was shown of fencepost-2"
	compose exec -T fencepost-2 fencepost status | grep 'billing.*worker-' >/dev/null || fail "fencepost-2 has no leader"
}

embedded() {
	compose --profile '*' down --volumes --timeout 5 >"$tmp/down.log" 2>&1
	compose up --detach embedded-a embedded-b >"$tmp/up.log" 2>&1
	within 60 "embedded-a leads and writes, without Consul" charges_exceed 0 embedded-a
	[ -z "$(container consul)$(container fencepost)" ] || fail "more was started than was asked for"
	compose pause embedded-a >/dev/null 2>&1
	within 20 "embedded-b took over from the frozen embedded-a" charges_exceed 0 embedded-b
	compose unpause embedded-a >/dev/null 2>&1
	within 10 "embedded-a shows that it was refused" says embedded-a 'FATAL: +ZF001'
}
