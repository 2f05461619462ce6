#!/usr/bin/env bash
# Make .cache/zookeeper, a program that runs a ZooKeeper server in the foreground. Its argument is
# the path of a configuration (zoo.cfg).
#
# The server's archives come from packages that require a desktop's Java runtime, a web server and
# some forty others, and are not installed. A headless Java runtime is, if there is none.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh java
if ! command -v apt-get >/dev/null; then
	echo "${0##*/}: this system has no apt-get: put a program named zookeeper into PATH that runs a ZooKeeper server with the configuration in its argument" >&2
	exit 1
fi
echo "fetching ZooKeeper" >&2
mkdir -p .cache
home=$PWD/.cache
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
scripts/unpack.sh "$tmp" libzookeeper-java libslf4j-java libnetty-java libdropwizard-metrics-java libsnappy-java
rm -rf "$home/zookeeper.jars"
mkdir "$home/zookeeper.jars"
for jar in zookeeper zookeeper-jute slf4j-api slf4j-simple metrics-core snappy-java \
	netty-buffer netty-codec netty-common netty-handler netty-resolver netty-transport \
	netty-transport-native-epoll netty-transport-native-unix-common; do
	cp -L "$tmp/usr/share/java/$jar.jar" "$home/zookeeper.jars/"
done
cat >"$home/zookeeper.new" <<'END'
#!/bin/sh
# Runs a ZooKeeper server in the foreground; the argument is its configuration.
jars=$(dirname "$(readlink -f "$0")")/zookeeper.jars
exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -Xmx128m -cp "$jars/*" $JVMFLAGS \
	org.apache.zookeeper.server.quorum.QuorumPeerMain "$@"
END
chmod 0755 "$home/zookeeper.new"
mv "$home/zookeeper.new" "$home/zookeeper"
