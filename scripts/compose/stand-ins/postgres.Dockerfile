# The server is that of scripts/postgres-version.sh, psql and pg_isready are Debian's.
FROM fencepost-debian
COPY postgres.sh /usr/local/bin/docker-entrypoint.sh
COPY 18 /usr/lib/postgresql/18
RUN useradd --system --user-group --home-dir /var/lib/postgresql postgres && \
	ln -s /usr/lib/postgresql/18/bin/* /usr/local/bin/ && mkdir /docker-entrypoint-initdb.d
ENV PGDATA=/var/lib/postgresql/18/docker LANG=C.UTF-8
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
