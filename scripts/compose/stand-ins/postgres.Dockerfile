FROM fencepost-debian
COPY postgres.sh /usr/local/bin/docker-entrypoint.sh
RUN ln -sf /usr/lib/postgresql/*/bin/* /usr/local/bin/ && mkdir /docker-entrypoint-initdb.d
ENV PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres", "-c", "listen_addresses=*"]
