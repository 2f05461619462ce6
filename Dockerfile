# The Postgres grammar is C code: the build needs a compiler, the image glibc.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
RUN CGO_ENABLED=1 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /fencepost ./cmd/fencepost

FROM debian:bookworm-slim
COPY --from=build /fencepost /usr/local/bin/fencepost
USER nobody
EXPOSE 6432 6433
ENTRYPOINT ["/usr/local/bin/fencepost"]
CMD ["serve"]
