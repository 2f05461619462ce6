# Fencepost. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

ELECTION ?= postgres
# The timeout allows for other load on the machine. Several packages run at a time, because many tests wait
# for leases; a -p in TESTFLAGS changes that.
TESTFLAGS ?= -parallel 6 -timeout 60m
# The packages that take longest come first.
PKG ?= ./test/safety ./test/system ./test/connection ./test/failover ./test/drivers ./test/protocol ./...
CHAOS_TIME ?= 5m
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
CONSUL_MODULE := internal/consultest/agent
KUBERNETES_MODULE := internal/kubernetestest/server
MAJORS := 15 16 17 18
# For make fuzz: the number of random scripts, and the first seed.
N ?= 10000
SEED ?= 0
# For make test-matrix: the versions and the packages.
MATRIX ?= $(MAJORS)
MATRIX_PKG ?= ./migrations ./internal/guard ./fencing/store ./fencing/fence ./fencing/operator ./fencing/catalog ./election/postgres ./proxy ./test/...
# A pattern of tests to leave out. Those named 18 run on PostgreSQL 18 anyway.
MATRIX_SKIP ?=

.PHONY: help build lab test test-race test-unfenced test-mutations fuzz model test-kubernetes observability prometheus helm drivers suites regress test-matrix fetch-drivers chaos demo page-test playground playground-test deb deb-test image compose-test bench bench-quick bench-takeover lint fmt setup pgbouncer consul etcd kubernetes redis zookeeper postgres-18 postgres-versions clean

help: ## Show this help
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

build: setup ## Build bin/fencepost
	go build -buildvcs=false -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/fencepost ./cmd/fencepost

lab: build ## Build bin/fencepost-lab, the demo and the playground
	go build -buildvcs=false -trimpath -ldflags '-s -w' -o bin/fencepost-lab ./cmd/fencepost-lab

test: setup pgbouncer redis consul etcd zookeeper postgres-18 fetch-drivers ## Run all tests, with -race, against real Postgres, Consul, etcd, Redis and ZooKeeper
	go test -race -vet=off -count=1 -p 3 $(TESTFLAGS) $(PKG) # make lint vets

# make test builds the program without -race, and the tests that start it with.
test-race: setup pgbouncer redis consul etcd zookeeper postgres-18 ## Run the safety tests of whole systems with a program that is built with -race, too
	FENCEPOST_TEST_RACE=1 go test -race -count=1 -p 2 $(TESTFLAGS) -run 'Safety|TheChosenWorkerLeads|BothProxiesFollow' ./test/system ./test/failover

test-unfenced: setup pgbouncer redis consul etcd zookeeper postgres-18 fetch-drivers ## Run the safety tests without the check: each of them must fail
	go run -buildvcs=false ./scripts/unfenced $(PKG)

test-mutations: setup postgres-18 ## Plant faults in the gate: the fast safety tests must notice each (RUN=pattern, LIMIT=10m for as many as that allows)
	go run -buildvcs=false ./scripts/mutations $(if $(RUN),-run '$(RUN)') $(if $(filter-out 0,$(LIMIT)),-limit $(LIMIT))

# On PostgreSQL 15 and 18. A leader's bytes must pass as they are; who does not lead must read as from Postgres, and must
# not write.
fuzz: setup postgres-18 ## Send N random scripts of leaders and of others through Fencepost (SEED=the seed of a failure)
	go test -count=1 -timeout 0 -run '^(TestALeadersBytesPassAsTheyAre|TestRandomScripts|TestRandomWrites)$$' ./test/protocol ./proxy/protocol -args -scripts $(N) -seed $(SEED)

model: ## Search the model of registered backends, and show that it notices each mutation (RUN=pattern, TRACE=mutation)
	@scripts/setup.sh cc spin
	@proof/check.sh $(if $(TRACE),trace '$(TRACE)',$(if $(RUN),'$(RUN)'))

# With the tag, test/system has one more lease service, and other packages have tests of their own.
test-kubernetes: setup kubernetes ## Run the tests of Kubernetes leases on a real kube-apiserver (built once, several minutes)
	go test -race -tags kubernetes -count=1 -p 2 $(TESTFLAGS) ./election/kubernetes
	go test -race -tags kubernetes -count=1 -p 2 $(TESTFLAGS) -run 'FrozenLeader/kubernetes' ./test/system

observability: setup prometheus ## Test the alert rules and the Grafana board in etc, on a real Prometheus
	PATH="$$PATH:$(CURDIR)/.cache/prometheus"; \
	cd test/observability && go vet ./... && go test -count=1 . -prometheus "$$(command -v prometheus)" && \
		promtool test rules rules_test.yml

helm: build ## Lint the Helm chart, and test it and the manifests for Kubernetes (builds helm, some minutes, once; UPDATE=1 writes the manifests)
	@if ! command -v helm >/dev/null && [ ! -x .cache/helm ]; then \
		echo "building helm (some minutes, once)"; \
		mkdir -p .cache; \
		(cd scripts/helm && go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$(CURDIR)/.cache/helm.new" helm.sh/helm/v3/cmd/helm); \
		mv .cache/helm.new .cache/helm; \
	fi
	helm=$$(command -v helm || echo "$(CURDIR)/.cache/helm"); \
	"$$helm" lint --strict --quiet etc/helm/fencepost; \
	"$$helm" lint --strict --quiet etc/helm/fencepost --values test/kubernetes/testdata/full.yml; \
	cd test/kubernetes && go vet ./... && go test -count=1 . -helm "$$helm" -fencepost "$(CURDIR)/bin/fencepost" $(if $(UPDATE),-update)

prometheus: ## Fetch Prometheus and promtool for tests by apt, unless they are in PATH
	@if ! { command -v prometheus && command -v promtool; } >/dev/null && [ ! -x .cache/prometheus/promtool ]; then \
		echo "fetching Prometheus"; \
		rm -rf .cache/prometheus .cache/promtool .cache/prometheus.new; \
		mkdir -p .cache/prometheus.new; \
		scripts/unpack.sh .cache/prometheus.new prometheus; \
		mv .cache/prometheus.new/usr/bin .cache/prometheus; \
		rm -rf .cache/prometheus.new; \
	fi

drivers: setup postgres-18 fetch-drivers ## Run the tests of real drivers: psql, pgx, lib/pq, psycopg, node, JDBC, PDO, DBD::Pg, ODBC, Django, node's libraries
	@scripts/drivers.sh versions
	go test -race -count=1 -timeout 40m -v ./test/drivers

test-matrix: setup pgbouncer redis consul etcd zookeeper postgres-18 fetch-drivers ## Run the tests that depend on the server on PostgreSQL 15 to 18 (MATRIX="16 18")
	@failed=; for major in $(MATRIX); do \
		echo "== PostgreSQL $$major"; \
		FENCEPOST_TEST_PG_BIN=$$(scripts/postgres-version.sh $$major) \
			go test -count=1 -p 2 $(TESTFLAGS) -skip '/^18$$$(if $(MATRIX_SKIP),|$(MATRIX_SKIP))' $(MATRIX_PKG) || failed="$$failed $$major"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed on PostgreSQL$$failed" >&2; exit 1; fi

suites: build ## Run the test suites of pgx and lib/pq directly and through Fencepost (MAJOR=18 SUITES="pgx pq")
	scripts/suites.sh

regress: build ## Run PostgreSQL's regression and isolation suites directly and through Fencepost (SUITES="regress isolation" TESTS="test_setup portals")
	scripts/regress.sh

chaos: setup redis consul etcd zookeeper postgres-18 ## Longer runs under random faults (CHAOS_TIME=5m)
	FENCEPOST_CHAOS_TIME=$(CHAOS_TIME) go test -count=1 -timeout 60m -run Soak ./test/system

demo: lab ## Show a frozen leader being fenced (ELECTION=postgres, consul, etcd, kubernetes, raft, redis or zookeeper)
	@if [ "$(ELECTION)" != postgres ] && [ "$(ELECTION)" != raft ]; then $(MAKE) --no-print-directory $(ELECTION); fi
	@bin/fencepost-lab demo --election $(ELECTION)

playground: lab ## Show on a web page how workers compete, fail and are fenced
	@bin/fencepost-lab playground

playground-test: lab ## Test the playground's page in Chromium (SHOTS=docs takes its pictures anew)
	@scripts/browser.sh
	@scripts/browser.sh with node test/playground/page.js --program bin/fencepost-lab $(if $(SHOTS),--shots "$(SHOTS)")

page-test: setup ## Test the page for operators in Chromium (SHOTS=docs takes its pictures anew)
	@scripts/browser.sh
	@scripts/browser.sh with env SHOTS="$(if $(SHOTS),$(abspath $(SHOTS)))" go test -tags chromium -count=1 -v ./test/page

bench: build ## Compare with PgBouncer, HAProxy and no proxy, and write docs/benchmarks.md (an hour; ARGS="-write -loads update")
	@scripts/setup.sh pgbouncer haproxy
	go run -buildvcs=false ./scripts/bench $(or $(ARGS),-write)

bench-quick: build ## Compare with PgBouncer in three minutes
	@scripts/setup.sh pgbouncer haproxy
	go run -buildvcs=false ./scripts/bench -quick

DEB_ARCH ?= $(shell dpkg --print-architecture 2>/dev/null || echo amd64)
# A version tag as it is, anything else below all releases.
DEB_VERSION ?= $(if $(filter v%,$(VERSION)),$(VERSION:v%=%),0~$(VERSION))

deb: build ## Build the Debian package bin/fencepost.deb, with a systemd unit, manual page, completions, docs, alerts and board
	@[ -x .cache/nfpm ] || { echo "building nfpm (a minute, once)"; mkdir -p .cache; \
		cd scripts/deb && go build -buildvcs=false -o "$(CURDIR)/.cache/nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm; }
	@rm -rf bin/deb && mkdir bin/deb
	bin/fencepost man | gzip -9n >bin/deb/fencepost.1.gz
	for shell in bash zsh fish; do bin/fencepost completion $$shell >bin/deb/completion.$$shell; done
	DEB_ARCH=$(DEB_ARCH) DEB_VERSION=$(DEB_VERSION) .cache/nfpm package --config scripts/deb/nfpm.yaml --packager deb --target bin/fencepost.deb

deb-test: deb ## Install the Debian package, start it as its unit does, and remove it (needs root)
	scripts/deb/check.sh bin/fencepost.deb

image: ## Build the Docker image fencepost for docker-compose.yml, with its version
	VERSION='$(VERSION)' REVISION=$$(git rev-parse HEAD 2>/dev/null || true) docker compose build

compose-test: setup consul prometheus ## Play docker-compose.yml on Docker; stand-ins replace missing base images (needs root)
	scripts/compose/check.sh '$(VERSION)'

bench-takeover: setup kubernetes consul etcd redis zookeeper ## Measure takeovers with each lease service, and write docs/electors.md (half an hour)
	go run -buildvcs=false ./scripts/takeover

lint: ## Check format, vet, who imports whom, and that the planted faults apply
	test -z "$$(gofmt -l $$(git ls-files '*.go') | tee -a /dev/stderr)"
	go vet ./...
	go vet -tags fencepost_unfenced ./...
	go vet -tags fencepost_plainnet ./proxy/netloop
	go vet -tags kubernetes ./election/kubernetes ./test/system
	go vet -tags chromium ./test/page
	GOOS=darwin CGO_ENABLED=0 go vet $$(GOOS=darwin CGO_ENABLED=0 scripts/portable.sh)
	go test ./internal/imports ./scripts/mutations
	cd test/drivers/go && go vet ./...

fmt: ## Format the code
	gofmt -w $$(git ls-files '*.go')

setup: ## Install by apt what is missing: a C compiler, PostgreSQL
	scripts/setup.sh go cc postgres

pgbouncer:
	scripts/setup.sh pgbouncer redis

redis: ## Install Redis by apt for tests and the demo, unless one is in PATH
	scripts/setup.sh redis

consul: ## Build a Consul agent for tests and the demo, unless one is in PATH
	@if ! command -v consul >/dev/null && [ ! -x .cache/consul ]; then \
		echo "building Consul (some minutes, once)"; \
		mkdir -p .cache; \
		(cd $(CONSUL_MODULE) && go build -buildvcs=false -o "$(CURDIR)/.cache/consul.new" github.com/hashicorp/consul); \
		mv .cache/consul.new .cache/consul; \
	fi

etcd: ## Build etcd for tests and the demo, unless one is in PATH
	@if ! command -v etcd >/dev/null && [ ! -x .cache/etcd ]; then \
		echo "building etcd (a minute, once)"; \
		mkdir -p .cache; \
		(cd scripts/etcd && go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$(CURDIR)/.cache/etcd.new" go.etcd.io/etcd/server/v3); \
		mv .cache/etcd.new .cache/etcd; \
	fi

kubernetes: etcd ## Build a kube-apiserver for tests and the demo, unless one is in PATH
	@if ! command -v kube-apiserver >/dev/null && [ ! -x .cache/kube-apiserver ]; then \
		echo "building kube-apiserver (several minutes, once; needs 2 GB of memory)"; \
		mkdir -p .cache; \
		(cd $(KUBERNETES_MODULE) && go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$(CURDIR)/.cache/kube-apiserver.new" k8s.io/kubernetes/cmd/kube-apiserver); \
		mv .cache/kube-apiserver.new .cache/kube-apiserver; \
	fi

zookeeper: ## Fetch ZooKeeper for tests and the demo by apt, unless one is in PATH
	@if ! command -v zookeeper >/dev/null; then \
		if [ -x .cache/zookeeper ]; then scripts/setup.sh java; else scripts/zookeeper.sh; fi; \
	fi

postgres-18:
	@scripts/postgres-version.sh 18 >/dev/null

fetch-drivers:
	@scripts/drivers.sh

postgres-versions: ## Fetch PostgreSQL 15 to 18 for tests
	for major in $(MAJORS); do scripts/postgres-version.sh $$major; done

clean: ## Remove what was built and fetched
	rm -rf bin .cache
