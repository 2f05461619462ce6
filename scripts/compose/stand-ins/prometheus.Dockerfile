FROM fencepost-debian
COPY prometheus /bin/prometheus
RUN install -d -o nobody /prometheus
USER nobody
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
