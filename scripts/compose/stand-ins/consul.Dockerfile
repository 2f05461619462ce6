FROM fencepost-debian
COPY consul /usr/local/bin/
ENTRYPOINT ["consul"]
