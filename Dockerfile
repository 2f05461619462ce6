# The Postgres grammar is C code, so the build needs a C compiler. The program is linked
# statically: the image contains only the program and the authorities of certificates.
FROM golang:1.26-bookworm AS build
ARG GOPROXY
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=devel
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
	CGO_ENABLED=1 go build -trimpath -buildvcs=false -tags netgo,osusergo -o /fencepost \
	-ldflags "-s -w -linkmode external -extldflags -static -X main.version=${VERSION}" ./cmd/fencepost

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
