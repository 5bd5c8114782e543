# foldmq in a container: docker build -t foldmq . ; docs/operations.md says how to run it.

FROM debian:13-slim AS build
WORKDIR /src
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev python3-venv \
 && python3 -m venv /opt/foldmq
COPY pyproject.toml setup.py README.md LICENSE ./
COPY tools/mypyc.ini tools/
COPY protocol protocol
COPY eventstore eventstore
COPY outbox outbox
COPY projections projections
COPY actors actors
COPY cluster cluster
COPY spark spark
COPY foldmq.py pyspark_foldmq.py ./
COPY cli cli
# Debugging symbols and pip, which nothing needs, are a quarter of it.
RUN /opt/foldmq/bin/pip install --no-cache-dir --no-compile . \
 && /opt/foldmq/bin/pip uninstall --yes pip \
 && find /opt/foldmq -name '*.so' -exec strip --strip-unneeded {} + \
 && /opt/foldmq/bin/python -m compileall -q /opt/foldmq/lib

# Debian's Python and the libraries that it needs, without a shell and a package manager.
FROM debian:13-slim AS root
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates netbase python3 tzdata \
 && useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin foldmq \
 && install -d -o foldmq -g foldmq -m 0700 /data \
 && { dpkg -L base-files ca-certificates libbz2-1.0 libc6 libexpat1 libffi8 libgcc-s1 liblzma5 \
        libpython3.13-minimal libpython3.13-stdlib libsqlite3-0 libssl3t64 libstdc++6 libuuid1 libzstd1 netbase \
        python3 python3-minimal python3.13 python3.13-minimal tzdata zlib1g \
      | grep -v -e '^/usr/share/\(info\|lintian\|locale\|man\)/' -e '^/usr/share/doc/.*/\(changelog\|NEWS\|README\)' \
      && find /data /etc/group /etc/ld.so.cache /etc/localtime /etc/nsswitch.conf /etc/passwd /etc/ssl/certs \
        /usr/lib/python3.13 -print; } \
  | tar --create --no-recursion --files-from=- --file=/root.tar \
 && mkdir /image && tar --extract --file=/root.tar --directory=/image

FROM scratch
COPY --from=root /image /
COPY --from=build /opt/foldmq /opt/foldmq
ENV PATH=/opt/foldmq/bin:/usr/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    FOLDMQ_LISTEN=0.0.0.0:1883 \
    FOLDMQ_METRICS=0.0.0.0:18831 \
    FOLDMQ_WEB=0.0.0.0:18830 \
    FOLDMQ_DATA_DIR=/data \
    FOLDMQ_LOG_FORMAT=json
USER foldmq
WORKDIR /data
VOLUME /data
EXPOSE 1883 18830 18831
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --retries=3 \
    CMD ["python", "-c", "import os, sys, urllib.error, urllib.request as http\nport = os.environ['FOLDMQ_METRICS'].rpartition(':')[2]\ntry: http.urlopen(f'http://127.0.0.1:{port}/readyz', timeout=4)\nexcept urllib.error.HTTPError as error: sys.exit(error.read().decode())\nexcept OSError as error: sys.exit(str(error))"]
# Without a user file the broker refuses to serve other machines; see docs/operations.md.
ENTRYPOINT ["foldmq"]
CMD ["serve"]
