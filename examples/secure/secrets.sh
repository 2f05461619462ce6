#!/bin/sh
# Makes up the passwords and certificates for docker-compose.secure.yml in the volume
# /secrets, at the first start only. Each directory can be read by one service.
set -eu
umask 077
cd /secrets
if [ -e complete ]; then exit; fi
rm -rf ./*
mkdir postgres migrate fencepost worker

superuser=$(openssl rand -hex 24)
control=$(openssl rand -hex 24)
shop=$(openssl rand -hex 24)
echo "$superuser" >postgres/superuser
cat >postgres/roles.sql <<SQL
ALTER ROLE shop PASSWORD '$shop';
CREATE ROLE fencepost LOGIN PASSWORD '$control';
GRANT pg_signal_backend, pg_read_all_stats TO fencepost;
SQL
echo "postgres:5432:*:postgres:$superuser" >migrate/pgpass
printf 'control:\n  password: %s\n' "$control" >fencepost/fencepost.yml
printf '[shop]\npassword=%s\n' "$shop" >worker/pg_service.conf

printf '[req]\ndistinguished_name = name\n[name]\n' >config
# certificate NAME OPTION... makes NAME.key and NAME.crt.
certificate() {
	name=$1
	shift
	openssl req -config config -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 \
		-keyout "$name.key" -out "$name.crt" "$@" 2>log || { cat log >&2; exit 1; }
}
certificate ca -subj "/CN=Fencepost's example" -addext basicConstraints=critical,CA:TRUE -addext keyUsage=keyCertSign
# Fencepost shows the certificate of Postgres, so that SCRAM can bind the password to it.
certificate postgres/server -CA ca.crt -CAkey ca.key -subj /CN=postgres \
	-addext subjectAltName=DNS:postgres,DNS:fencepost,DNS:fencepost-2,DNS:fencepost-embedded,DNS:localhost,IP:127.0.0.1
cp postgres/server.* fencepost/
rm ca.key config log # nobody can issue another certificate

touch complete
chmod 755 .
chmod 644 ca.crt
chown -R postgres:postgres postgres
chown -R 65533:65533 migrate
chown -R 65532:65532 fencepost
chown -R 65534:65534 worker
