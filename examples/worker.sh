#!/bin/sh
# An example worker that needs only psql. It waits until it is the leader
# (fencepost.campaign=wait), then writes once a second. When it is superseded,
# its write fails with ZF001 and its connection ends. It then reconnects and
# stands by.
#
# WORKER is its name, and RESOURCE what it wants to write (default: billing). PGHOST and
# similar variables give the address of Fencepost.
set -u
trap 'exit 0' TERM INT

life=0
while :; do
	# Each psql is a separate process, so it gets its own id.
	life=$((life + 1))
	id="$WORKER:$(hostname):$(date +%s):$life"
	export PGOPTIONS="-c fencepost.resource=${RESOURCE:-billing} -c fencepost.worker=$id -c fencepost.campaign=wait"
	echo "$WORKER: connecting, and waiting to lead"
	psql --quiet --no-psqlrc --set ON_ERROR_STOP=1 <<SQL &
\pset format unaligned
\pset tuples_only on
\echo $WORKER leads and writes once a second
INSERT INTO charges (worker) VALUES ('$WORKER') RETURNING '$WORKER wrote row ' || id \watch 1
SQL
	wait $!
	echo "$WORKER: connection closed"
	sleep 1 &
	wait $!
done
