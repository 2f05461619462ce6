#!/bin/sh
# An example worker: psql, nothing else. It waits until it leads
# (fencepost.campaign=wait), then writes once a second. When it is superseded,
# its write fails with ZF001 and its connection ends; it connects again, and
# stands by.
#
# WORKER is its name; PGHOST and the like say where Fencepost is.
set -u
trap 'exit 0' TERM INT

life=0
while :; do
	# Each psql is a process of its own, so it has an id of its own.
	life=$((life + 1))
	id="$WORKER:$(hostname):$(date +%s):$life"
	export PGOPTIONS="-c fencepost.resource=billing -c fencepost.worker=$id -c fencepost.campaign=wait"
	echo "$WORKER: connects, and waits until it leads"
	psql --quiet --no-psqlrc --set ON_ERROR_STOP=1 <<SQL &
\pset tuples_only on
\echo $WORKER leads, and writes once a second
INSERT INTO charges (worker) VALUES ('$WORKER') RETURNING '$WORKER wrote row ' || id \watch 1
SQL
	wait $!
	echo "$WORKER: its connection is over"
	sleep 1 &
	wait $!
done
