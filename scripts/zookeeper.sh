#!/usr/bin/env bash
# Make .cache/zookeeper, a program that runs a ZooKeeper server in the foreground. Its argument is
# the path of a configuration (zoo.cfg).
#
# apt supplies the server's archives, which are unpacked without installing them, because the
# packages require a desktop's Java runtime, a web server and some forty others. A headless Java
# runtime is installed if there is none.
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
chmod 0777 "$tmp" # apt downloads as a user of its own
packages=(libzookeeper-java libslf4j-java libnetty-java libdropwizard-metrics-java libsnappy-java)
if ! (cd "$tmp" && apt-get -qq download "${packages[@]}" >/dev/null 2>&1); then
	scripts/setup.sh lists
	(cd "$tmp" && apt-get -qq download "${packages[@]}")
fi
for package in "$tmp"/*.deb; do dpkg-deb -x "$package" "$tmp/root"; done
rm -rf "$home/zookeeper.jars"
mkdir "$home/zookeeper.jars"
for jar in zookeeper zookeeper-jute slf4j-api slf4j-simple metrics-core snappy-java \
	netty-buffer netty-codec netty-common netty-handler netty-resolver netty-transport \
	netty-transport-native-epoll netty-transport-native-unix-common; do
	cp -L "$tmp/root/usr/share/java/$jar.jar" "$home/zookeeper.jars/"
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
