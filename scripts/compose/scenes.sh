# Sourced by check.sh: what is played with the services. The scene image (image.sh) has
# started those of no profile. Each scene except two_proxies, embedded and secure leaves
# them running.
# shellcheck shell=bash

# What needs no engine: the files that are mounted exist (Docker would create directories in
# their place), and variables can pin each image but Fencepost's own.
files() {
	local file image variable digest
	digest=sha256:$(printf '0%.0s' {1..64})
	compose --profile '*' config >"$tmp/config.yml"
	for file in $(sed -nE 's|^ +source: (/.*)|\1|p' "$tmp/config.yml" | sort -u); do
		[ -f "$file" ] || fail "docker-compose.yml mounts $file, which is not a file"
	done
	for image in $(
		for variable in POSTGRES CONSUL PROMETHEUS GRAFANA; do export "${variable}_IMAGE=pinned@$digest"; done
		compose --profile '*' config --images | sort -u
	); do
		[[ $image = "pinned@$digest" || $image = fencepost || $image = fencepost-lab || $image = "$COMPOSE_PROJECT_NAME"-worker-* ]] || fail "no variable pins $image"
	done
	for variable in $(sed -nE 's/^\| `([A-Z]+_IMAGE)`.*/\1/p' docs/compose.md); do
		grep -F "| \`$variable\` | \`$(base "$variable")\`" docs/compose.md >/dev/null || fail "docs/compose.md has another default of $variable than $(base "$variable")"
	done
	step "files that are mounted exist, and images can be pinned"
}

takeover() {
	local before
	within 60 "worker-a leads and writes" charges_exceed 0 worker-a
	confined fencepost worker-a worker-b
	restarts postgres consul
	[ "$(charges worker-b)" = 0 ] || fail "worker-b wrote before worker-a was frozen"
	compose exec -T fencepost fencepost status | grep 'billing.*worker-a' >/dev/null || fail "status does not show that worker-a leads"
	PGPASSWORD=example-shop psql -qAtX -h 127.0.0.1 -p "$PROXY_PORT" -U shop shop -c 'SELECT count(*) FROM charges' >/dev/null
	http "$ADMIN_PORT" /metrics '^fencepost_epoch' || fail "the admin address does not serve metrics"
	http "$CONSUL_PORT" /v1/status/leader ':8300' || fail "Consul's API does not answer"
	compose pause worker-a >/dev/null 2>&1
	within 20 "worker-b took over from the frozen worker-a" charges_exceed 0 worker-b
	before=$(charges worker-a)
	compose unpause worker-a >/dev/null 2>&1
	within 10 "worker-a shows that it was refused" says worker-a 'FATAL: .*was superseded.*\[ZF001\]'
	within 10 "the audit log has the refused write" says fencepost '"stale write rejected".*"worker":"worker-a:.*"sqlstate":"ZF001"'
	[ "$(charges worker-a)" = "$before" ] || fail "worker-a wrote after it was superseded"
	! says worker-a '^$' || fail "worker-a prints empty lines"
	! says consul 'DEBUG|INFO' || fail "Consul prints its debug log"
}

crashes() {
	local service
	for service in fencepost consul postgres worker-a worker-b; do comes_back "$service"; done
	# A worker writes for some seconds without Consul. The new one is empty until it has the lease.
	within 60 "the new Consul has a lease" compose exec -T consul consul kv get fencepost/shop/billing
	writes_go_on 60 "a worker writes under that lease"
}
# comes_back SERVICE kills its process from outside: docker compose kill would count as a stop
# by hand.
comes_back() {
	kill -KILL "$(inspect "$1" '{{.State.Pid}}')"
	within 30 "$1 restarted" restarted "$1"
	within 60 "postgres answers" charges
	writes_go_on 90 "a worker writes after $1 was killed"
}
restarted() { [ "$(inspect "$1" '{{.RestartCount}} {{.State.Running}}')" = "1 true" ]; }

# Without Consul nobody writes when the lease has ended, status says so, and the workers that
# wait do not flood the screen.
consul_away() {
	local lines
	compose stop consul >/dev/null 2>&1
	within 60 "status says that the lease cannot be read" status_shows 'billing +unknown'
	within 60 "nobody writes" writes_stopped
	# Both wait then.
	within 10 "status names the workers that wait" status_shows 'waiting: .*, '
	lines=$(lines_of worker-a worker-b)
	sleep 20
	lines=$(($(lines_of worker-a worker-b) - lines))
	[ "$lines" -gt 0 ] || fail "the workers print nothing while they wait for 20 s"
	[ "$lines" -le 6 ] || fail "the workers print $lines lines while they wait for 20 s"
	step "the workers printed $lines lines while they waited for 20 s"
	health fencepost healthy || fail "fencepost is not healthy without Consul"
	compose start consul >/dev/null 2>&1
	writes_go_on 60 "a worker writes with Consul again"
}
lines_of() { logs "$@" | wc -l; }
status_shows() { compose exec -T fencepost fencepost status | grep -E "$1" >/dev/null; }
writes_stopped() {
	local before
	before=$(charges) && sleep 3 && [ "$(charges)" = "$before" ]
}

readiness() {
	within 60 "fencepost is healthy" health fencepost healthy
	compose stop postgres >/dev/null 2>&1
	within 30 "fencepost is unhealthy without postgres" health fencepost unhealthy
	! says worker-a 'schema fencepost' || fail "worker-a is told to look for a schema when postgres stops"
	compose start postgres >/dev/null 2>&1
	within 60 "fencepost is healthy again" health fencepost healthy
	writes_go_on 60 "a worker writes again"
}

# Both pairs are frozen in the middle of a charge.
unfenced() {
	compose --profile unfenced up --detach >"$tmp/up.log" 2>&1
	confined fenced-a fenced-b unfenced-a unfenced-b
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
	confined prometheus
	within 60 "Prometheus scrapes fencepost" prometheus_has "query?query=fencepost_ready" '"instance":"fencepost:6433".*"1"'
	within 60 "Prometheus evaluates the alerts" prometheus_has rules '"name":"FencepostNobodyLeads".*"health":"ok"'
	compose rm --stop --force prometheus >/dev/null 2>&1
}
prometheus_has() { http "$PROMETHEUS_PORT" "/api/v1/$1" "$2"; }

# A worker with the driver of a language leads when the others have gone, comes back when it
# is killed, and is superseded while it is frozen.
worker_python() { driver_worker python; }
worker_node() { driver_worker node; }
worker_java() { driver_worker java; }
driver_worker() {
	local worker=worker-$1 before
	compose --profile "$1" up --build --detach "$worker" >"$tmp/up.log" 2>&1 || { cat "$tmp/up.log" >&2; fail "the image of $worker was not built"; }
	compose stop worker-a worker-b >/dev/null 2>&1
	within 60 "$worker leads and writes" charges_exceed 0 "$worker"
	confined "$worker"
	comes_back "$worker"
	compose start worker-a >/dev/null 2>&1
	within 30 "worker-a waits" status_shows 'waiting: worker-a'
	compose pause "$worker" >/dev/null 2>&1
	writes_go_on 30 "worker-a took over from the frozen $worker"
	compose unpause "$worker" >/dev/null 2>&1
	within 20 "$worker shows that it was refused" says "$worker" 'connection closed: .*ZF001'
	before=$SECONDS
	compose stop "$worker" >/dev/null 2>&1
	[ $((SECONDS - before)) -lt 8 ] || fail "$worker does not end at SIGTERM" # SIGKILL would come after 10 s
	compose rm --force "$worker" >/dev/null 2>&1
	compose start worker-b >/dev/null 2>&1
}

two_proxies() {
	compose --profile two-proxies up --detach >"$tmp/up.log" 2>&1
	within 60 "fencepost-2 is healthy" health fencepost-2 healthy
	confined fencepost-2
	writes_go_on 60 "a worker writes through fencepost"
	compose kill fencepost >/dev/null 2>&1
	writes_go_on 90 "a worker writes through fencepost-2"
	[ "$(inspect fencepost '{{.State.Running}}')" = false ] || fail "fencepost runs, so nothing was shown of fencepost-2"
	compose exec -T fencepost-2 fencepost status | grep 'billing.*worker-' >/dev/null || fail "fencepost-2 has no leader"
	compose --profile two-proxies up --detach >"$tmp/up.log" 2>&1
	within 60 "fencepost is healthy after docker compose up" health fencepost healthy
}

embedded() {
	compose --profile '*' down --volumes --timeout 5 >"$tmp/down.log" 2>&1
	compose up --detach embedded-a embedded-b >"$tmp/up.log" 2>&1
	within 60 "embedded-a leads and writes, without Consul" charges_exceed 0 embedded-a
	[ -z "$(container consul)$(container fencepost)" ] || fail "more was started than was asked for"
	confined fencepost-embedded embedded-a embedded-b
	compose pause embedded-a >/dev/null 2>&1
	within 20 "embedded-b took over from the frozen embedded-a" charges_exceed 0 embedded-b
	compose unpause embedded-a >/dev/null 2>&1
	within 10 "embedded-a shows that it was refused" says embedded-a 'FATAL: .*was superseded.*\[ZF001\]'
}

# down keeps the database, and the next start goes on with it.
kept() {
	local charges epoch
	charges=$(charges) epoch=$(epoch)
	compose --profile '*' down --timeout 5 >"$tmp/down.log" 2>&1
	compose up --detach >"$tmp/up.log" 2>&1
	within 60 "the database answers after down and up" charges
	[ "$(charges)" -ge "$charges" ] || fail "$(charges) charges are left after down and up, and there were $charges"
	writes_go_on 60 "a worker writes after down and up"
	[ "$(epoch)" -gt "$epoch" ] || fail "the epoch is $(epoch) after down and up, and was $epoch"
}
epoch() { sql "SELECT epoch FROM fencepost.fence WHERE resource = 'billing'"; }

# docker-compose.secure.yml: TLS, and passwords in files that only their service can read.
secure() {
	local service
	compose --profile '*' down --volumes --timeout 5 >"$tmp/down.log" 2>&1
	export COMPOSE_FILE=docker-compose.yml:docker-compose.secure.yml
	compose --profile two-proxies up --detach >"$tmp/up.log" 2>&1 || { cat "$tmp/up.log" >&2; fail "docker compose up failed"; }
	within 60 "worker-a leads and writes" charges_exceed 0 worker-a
	confined fencepost fencepost-2 worker-a worker-b
	[ "$(sql 'SELECT count(*) > 2 AND bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_addr IS NOT NULL')" = t ] || fail "a connection to Postgres has no TLS"
	! compose exec -T postgres psql -X "host=postgres user=shop dbname=shop sslmode=disable" -c 'SELECT 1' >/dev/null 2>"$tmp/plain.log" || fail "Postgres accepts a connection without TLS"
	grep 'no encryption' "$tmp/plain.log" >/dev/null || { cat "$tmp/plain.log" >&2; fail "Postgres does not say that it wants TLS"; }
	! PGSSLMODE=disable PGPASSWORD=x psql -qAtX -h 127.0.0.1 -p "$PROXY_PORT" -U shop shop -c 'SELECT 1' 2>"$tmp/plain.log" || fail "Fencepost accepts a connection without TLS"
	grep -i 'TLS' "$tmp/plain.log" >/dev/null || { cat "$tmp/plain.log" >&2; fail "Fencepost does not say that it wants TLS"; }
	for service in postgres migrate fencepost fencepost-2 worker-a worker-b; do
		! inspect "$service" '{{.Config.Env}}' | grep -E 'PASSWORD=[^] ]|example-' >/dev/null || fail "the environment of $service has a password"
	done
	! compose exec -T worker-a cat /secrets/postgres/superuser >/dev/null 2>&1 || fail "worker-a can read the password of the superuser"
	! compose exec -T worker-a cat /secrets/fencepost/fencepost.yml >/dev/null 2>&1 || fail "worker-a can read the password of Fencepost"
	step "all connections to Postgres have TLS, and no environment has a password"
	compose pause worker-a >/dev/null 2>&1
	within 20 "worker-b took over from the frozen worker-a" charges_exceed 0 worker-b
	compose unpause worker-a >/dev/null 2>&1
	within 10 "worker-a shows that it was refused" says worker-a 'FATAL: .*was superseded.*\[ZF001\]'
	kept
	compose --profile '*' down --volumes --timeout 5 >"$tmp/down.log" 2>&1
	unset COMPOSE_FILE
}
