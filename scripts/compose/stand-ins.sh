# Sourced after scripts/compose/engine.sh. Makes stand-ins for those base images of the
# Dockerfile and of docker-compose.yml that the engine does not have, because the machine
# may have no access to an image registry. All are built on one image of this machine's
# release of Debian.
# shellcheck shell=bash

stand_ins=()

# make_debian makes the image fencepost-debian. It trusts what this machine trusts.
make_debian() {
	local root=$tmp/debian mirror VERSION_CODENAME
	scripts/setup.sh debootstrap
	VERSION_CODENAME=$(. /etc/os-release && echo "$VERSION_CODENAME")
	mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $VERSION_CODENAME" 'Component: main' 'Created-By: Packages' | head -n 1)
	# The server's package must not create a cluster in the image.
	mkdir -p "$root/etc/postgresql-common/createcluster.d"
	echo 'create_main_cluster = false' >"$root/etc/postgresql-common/createcluster.d/none.conf"
	debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev,postgresql "$VERSION_CODENAME" "$root" "$mirror" >"$tmp/debootstrap.log"
	cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
	tar --numeric-owner -C "$root" --exclude './dev/*' --exclude './proc/*' --exclude './sys/*' --exclude './var/cache/apt/*' \
		--exclude './usr/share/doc/*' --exclude './usr/share/locale/*' -c . | docker import - fencepost-debian >/dev/null
	stand_ins+=(fencepost-debian)
	rm -rf "$root"
}

missing() { ! docker image inspect "$1" >/dev/null 2>&1; }

# stand_in IMAGE FILE DIRECTORY builds the image from a file in scripts/compose/stand-ins
# and the directory, if it is missing.
stand_in() {
	if ! missing "$1"; then return; fi
	if missing fencepost-debian; then make_debian; fi
	docker build --quiet --tag "$1" --file "scripts/compose/stand-ins/$2" "$3" >/dev/null
	stand_ins+=("$1")
}

make_stand_ins() {
	mkdir "$tmp/consul"
	cp "$(command -v consul || echo .cache/consul)" "$tmp/consul/consul"
	stand_in golang:1.26-bookworm golang.Dockerfile "$(go env GOROOT)"
	stand_in postgres:18 postgres.Dockerfile scripts/compose/stand-ins
	stand_in hashicorp/consul:1.22 consul.Dockerfile "$tmp/consul"
	mkdir "$tmp/prometheus"
	cp "$(command -v prometheus || echo .cache/prometheus)" "$tmp/prometheus/prometheus"
	stand_in prom/prometheus:v3.13.5 prometheus.Dockerfile "$tmp/prometheus"
	if missing debian:bookworm-slim; then
		docker tag fencepost-debian debian:bookworm-slim
		stand_ins+=(debian:bookworm-slim)
	fi
}

remove_stand_ins() {
	[ ${#stand_ins[@]} -eq 0 ] || docker image rm "${stand_ins[@]}" >/dev/null || true
}
