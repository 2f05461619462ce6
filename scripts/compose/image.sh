# Sourced by check.sh: the scenes about the image fencepost.
# shellcheck shell=bash

# It is built once for all services, and is what docs/compose.md says.
image() {
	local before files
	# An image fencepost that is there already loses its name.
	before=$(nameless; docker image inspect --format '{{.Id}}' fencepost 2>/dev/null || true)
	compose up --build --detach >"$tmp/up.log" 2>&1 || { cat "$tmp/up.log" >&2; fail "docker compose up failed"; }
	step "built and started"
	! nameless | grep --invert-match --line-regexp --fixed-strings "${before:-none}" >/dev/null || fail "the build left an image without a name"
	[ "$(grep -c 'naming to docker.io/library/fencepost' "$tmp/up.log")" = 1 ] || { cat "$tmp/up.log" >&2; fail "the image was not exported once"; }
	[[ "$(docker run --rm fencepost version)" = "fencepost $VERSION "* ]] || fail "the image has another version than $VERSION"
	is_set '{{.Config.User}}' 65532:65532
	is_set '{{range .Config.Env}}{{println .}}{{end}}' "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"$'\n'FENCEPOST_LISTEN=0.0.0.0:6432
	is_set '{{json .Config.Healthcheck.Test}}' '["CMD","/usr/local/bin/fencepost","status","--ready"]'
	is_set '{{index .Config.Labels "org.opencontainers.image.title"}}' Fencepost
	is_set '{{index .Config.Labels "org.opencontainers.image.version"}}' "$VERSION"
	is_set '{{index .Config.Labels "org.opencontainers.image.revision"}}' "$REVISION"
	is_set '{{index .Config.Labels "org.opencontainers.image.licenses"}}' Apache-2.0
	[ "$(docker image inspect --format '{{.Size}}' fencepost)" -lt 40000000 ] || fail "the image has more than 40 MB"
	docker create --name fencepost-test-files fencepost >/dev/null
	# The engine adds files of its own to a container.
	files=$(docker export fencepost-test-files | tar -t | grep -v -e '/$' -e '^\.dockerenv$' -e '^dev/' -e '^etc/\(hostname\|hosts\|mtab\|resolv.conf\)$' | sort | xargs)
	[ "$files" = "etc/ssl/certs/ca-certificates.crt usr/local/bin/fencepost" ] || fail "the image contains $files"
	[ "$(docker cp fencepost-test-files:/etc/ssl/certs/ca-certificates.crt - | tar -xO | grep -c 'BEGIN CERTIFICATE')" -gt 50 ] || fail "the image has no authorities of certificates"
	docker rm fencepost-test-files >/dev/null
	step "the image contains the program and the authorities of certificates, $(docker image inspect --format '{{.Size}}' fencepost) bytes"
}
nameless() { docker image ls --no-trunc --quiet --filter dangling=true --filter label=org.opencontainers.image.title=Fencepost; }
is_set() { # a template, and what the image has there
	local value
	value=$(docker image inspect --format "$1" fencepost)
	[ "$value" = "$2" ] || fail "the image has $value at $1, want $2"
}

# What does not belong to the program does not change the image, and a change of the program
# compiles only what depends on it.
rebuild() {
	local tree=$tmp/tree start file compiled
	mkdir "$tree"
	tar --exclude=./.git --exclude=./.cache --exclude=./bin -c . | tar -x -C "$tree"
	for file in README.md docs/compose.md examples/worker.sh docker-compose.yml Dockerfile cmd/fencepost/main_test.go; do
		echo '# changed' >>"$tree/$file"
	done
	build_tree fencepost-test-rebuilt
	[ "$(layers fencepost-test-rebuilt)" = "$(layers fencepost)" ] || fail "the image changes with files that are not the program's"
	step "a change of README.md, docs, examples and tests keeps the image"
	echo "func init() { println(\"changed at $(date)\") }" >>"$tree/cmd/fencepost/main.go"
	start=$SECONDS
	build_tree fencepost-test-rebuilt
	[ "$(layers fencepost-test-rebuilt)" != "$(layers fencepost)" ] || fail "a change of main.go keeps the image"
	! grep 'go: downloading' "$tmp/build.log" >/dev/null || fail "a change of main.go downloads modules again"
	# go build -v prints the packages that it compiles.
	compiled=$(sed -nE 's/^#[0-9]+ [0-9.]+ ([a-z][-a-z0-9.]*(\/[^ ]+)*)$/\1/p' "$tmp/build.log" | xargs)
	[ "$compiled" = github.com/fencepost/fencepost/cmd/fencepost ] || fail "a change of main.go compiles $compiled"
	step "a change of main.go compiles only its package ($((SECONDS - start)) s)"
}
build_tree() { built "$1" "{context: '$tmp/tree', args: ['VERSION=$VERSION', 'REVISION=$REVISION', GOPROXY, GO_IMAGE]}"; }
layers() { docker image inspect --format '{{json .RootFS.Layers}}' "$1"; }

# The image for another architecture is built by a cross compiler.
arm64() {
	built fencepost-test-arm64 '{context: ., args: [GOPROXY, GO_IMAGE], platforms: [linux/arm64]}'
	[ "$(docker image inspect --format '{{.Architecture}}' fencepost-test-arm64)" = arm64 ] || fail "the image for arm64 is for another architecture"
	docker create --platform linux/arm64 --name fencepost-test-arm64 fencepost-test-arm64 >/dev/null
	docker cp fencepost-test-arm64:/usr/local/bin/fencepost "$tmp/fencepost-arm64"
	docker rm fencepost-test-arm64 >/dev/null
	# The machine in the header of an ELF file: 183 is AArch64.
	[ "$(od --address-radix=n --format=u2 --skip-bytes=18 --read-bytes=2 "$tmp/fencepost-arm64" | tr -d ' ')" = 183 ] || fail "the program for arm64 is for another architecture"
	step "the image for arm64 was built"
	[ "$(uname -m)" = aarch64 ] || scripts/setup.sh qemu
	# explain uses the grammar of Postgres, which is the part that is not Go.
	on_arm64 explain "UPDATE invoices SET state = 'paid'" >"$tmp/arm64.log"
	grep 'write' "$tmp/arm64.log" >/dev/null || { cat "$tmp/arm64.log" >&2; fail "the program for arm64 does not know an UPDATE"; }
	step "the program for arm64 runs: $(on_arm64 version | head -n 1)"
}
on_arm64() {
	if [ "$(uname -m)" = aarch64 ]; then "$tmp/fencepost-arm64" "$@"; else qemu-aarch64 "$tmp/fencepost-arm64" "$@"; fi
}
