# foldmq in a container: docker build -t foldmq . ; docs/operations.md says how to run it.

FROM python:3.13-slim AS build
WORKDIR /src
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
 && python -m venv /opt/foldmq
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

FROM python:3.13-slim
COPY --from=build /opt/foldmq /opt/foldmq
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin foldmq \
 && install -d -o foldmq -g foldmq -m 0700 /data
ENV PATH=/opt/foldmq/bin:$PATH \
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
