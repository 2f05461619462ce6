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
	debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev,openssl,postgresql-client "$VERSION_CODENAME" "$root" "$mirror" >"$tmp/debootstrap.log"
	cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
	tar --numeric-owner -C "$root" --exclude './dev/*' --exclude './proc/*' --exclude './sys/*' --exclude './var/cache/apt/*' \
		--exclude './usr/share/doc/*' --exclude './usr/share/locale/*' -c . | docker import - fencepost-debian >/dev/null
	stand_ins+=(fencepost-debian)
	rm -rf "$root"
}

missing() { ! docker image inspect "$1" >/dev/null 2>&1; }

# base VARIABLE prints the base image that this variable names, or else the default that the
# files have for it.
base() {
	if [ -n "${!1:-}" ]; then
		echo "${!1}"
	else
		sed -nE "s/^ARG $1=//p; s/.*\\\$\{$1:-(.*)\}.*/\1/p" docker-compose.yml Dockerfile examples/python/Dockerfile | head -n 1
	fi
}

# stand_in IMAGE FILE DIRECTORY builds the image from a file in scripts/compose/stand-ins
# and the directory, if it is missing.
stand_in() {
	if ! missing "$1"; then return; fi
	if missing fencepost-debian; then make_debian; fi
	built "$1" "{context: '$3', dockerfile: '$PWD/scripts/compose/stand-ins/$2'}"
	stand_ins+=("$1")
}

# built IMAGE BUILD builds an image as a Compose file with this section build would.
built() {
	compose --file - build >"$tmp/build.log" 2>&1 <<<"services: {image: {image: '$1', build: $2}}" || { cat "$tmp/build.log" >&2; fail "$1 was not built"; }
}

make_stand_ins() {
	stand_in "$(base GO_IMAGE)" golang.Dockerfile "$(go env GOROOT)"
	mkdir "$tmp/postgres" "$tmp/consul" "$tmp/prometheus"
	if missing "$(base POSTGRES_IMAGE)"; then
		cp -R "$(dirname "$(scripts/postgres-version.sh 18)")" "$tmp/postgres/18"
		cp scripts/compose/stand-ins/postgres.sh "$tmp/postgres"
	fi
	stand_in "$(base POSTGRES_IMAGE)" postgres.Dockerfile "$tmp/postgres"
	cp "$(command -v consul || echo .cache/consul)" "$tmp/consul/consul"
	stand_in "$(base CONSUL_IMAGE)" consul.Dockerfile "$tmp/consul"
	cp "$(command -v prometheus || echo .cache/prometheus/prometheus)" "$tmp/prometheus/prometheus"
	stand_in "$(base PROMETHEUS_IMAGE)" prometheus.Dockerfile "$tmp/prometheus"
	if missing "$(base DEBIAN_IMAGE)"; then
		docker tag fencepost-debian "$(base DEBIAN_IMAGE)"
		stand_ins+=("$(base DEBIAN_IMAGE)")
	fi
}

remove_stand_ins() {
	[ ${#stand_ins[@]} -eq 0 ] || docker image rm "${stand_ins[@]}" >/dev/null || true
}
