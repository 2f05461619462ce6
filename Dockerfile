# The Postgres grammar is C code, so the build needs a C compiler for the target. It runs on
# the machine that builds, also for another architecture (--platform linux/arm64). The
# program is linked statically: the image contains only the program and the authorities of
# certificates.
#
# The base image is pinned to a version, but not to a digest, which only a registry can tell.
# To pin that too: --build-arg GO_IMAGE=golang:1.26.8-bookworm@sha256:...
ARG GO_IMAGE=golang:1.26.8-bookworm
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ARG BUILDARCH TARGETARCH
RUN if [ "$TARGETARCH" = "$BUILDARCH" ]; then echo gcc >/compiler; exit; fi; \
	case $TARGETARCH in \
	amd64) package=gcc-x86-64-linux-gnu compiler=x86_64-linux-gnu-gcc ;; \
	arm64) package=gcc-aarch64-linux-gnu compiler=aarch64-linux-gnu-gcc ;; \
	*) echo "there is no cross compiler here for $TARGETARCH: build on a machine of that architecture" >&2; exit 1 ;; \
	esac; \
	if ! command -v $compiler; then \
		apt-get update && apt-get install --yes --no-install-recommends $package libc6-dev-$TARGETARCH-cross || exit 1; \
	fi; \
	echo $compiler >/compiler
ARG GOPROXY
WORKDIR /src
COPY go.mod go.sum ./
# The secret ca is a CA certificate in PEM format that is trusted in addition, for networks in
# which a proxy reads TLS. It is not in any layer. Go reads /etc/ssl/certs beside SSL_CERT_FILE.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=secret,id=ca,required=false \
	if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi; \
	go mod download
COPY . .
ARG VERSION=devel
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
	CGO_ENABLED=1 GOOS=linux GOARCH=$TARGETARCH CC=$(cat /compiler) go build -v -trimpath -buildvcs=false -tags netgo,osusergo -o /fencepost \
	-ldflags "-s -w -linkmode external -extldflags -static -X main.version=${VERSION}" ./cmd/fencepost

# The workers of the demo, for docker compose (docker build --target lab).
FROM build AS build-lab
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
	CGO_ENABLED=1 GOOS=linux GOARCH=$TARGETARCH CC=$(cat /compiler) go build -v -trimpath -buildvcs=false -tags netgo,osusergo -o /fencepost-lab \
	-ldflags "-s -w -linkmode external -extldflags -static" ./cmd/fencepost-lab

FROM scratch AS lab
COPY --from=build-lab /fencepost-lab /usr/local/bin/fencepost-lab
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/fencepost-lab"]

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /fencepost /usr/local/bin/fencepost
# A number, because Kubernetes cannot tell that a user with a name is not root.
USER 65532:65532
# The default, 127.0.0.1, would accept connections only from inside the container.
ENV FENCEPOST_LISTEN=0.0.0.0:6432
EXPOSE 6432 6433
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 CMD ["/usr/local/bin/fencepost", "status", "--ready"]
ENTRYPOINT ["/usr/local/bin/fencepost"]
CMD ["serve"]
ARG VERSION=devel
ARG REVISION
LABEL org.opencontainers.image.title="Fencepost" \
	org.opencontainers.image.description="A PostgreSQL proxy that refuses the writes of former leaders" \
	org.opencontainers.image.source="https://github.com/fencepost/fencepost" \
	org.opencontainers.image.version="${VERSION}" \
	org.opencontainers.image.revision="${REVISION}" \
	org.opencontainers.image.licenses="Apache-2.0"
