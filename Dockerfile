# One image for every process; which one it is, the command says.
FROM python:3.11-slim-bookworm AS build
COPY requirements.lock /
RUN python -m venv /opt/steelyard \
    && /opt/steelyard/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement /requirements.lock

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/steelyard --create-home steelyard \
    && install -d -o steelyard -g steelyard -m 0700 /var/lib/steelyard/journal /var/lib/steelyard/cache
COPY --from=build /opt/steelyard /opt/steelyard
WORKDIR /srv/steelyard
COPY app app
COPY billing billing
COPY scheduler scheduler
COPY migrations migrations
COPY deploy/healthcheck.py deploy/engine.sh deploy/
RUN /opt/steelyard/bin/python -m compileall -q .
# glibc keeps the memory of one request for the next instead of giving it back to the kernel.
ENV PATH=/opt/steelyard/bin:$PATH \
    PYTHONPATH=/srv/steelyard \
    PYTHONUNBUFFERED=1 \
    MALLOC_MMAP_THRESHOLD_=67108864 \
    MALLOC_TRIM_THRESHOLD_=268435456 \
    STEELYARD_JOURNAL_DIR=/var/lib/steelyard/journal \
    STEELYARD_CACHE_DIR=/var/lib/steelyard/cache \
    STEELYARD_GATEWAY_HOST=0.0.0.0 \
    STEELYARD_CONTROL_HOST=0.0.0.0 \
    STEELYARD_METRICS_HOST=0.0.0.0 \
    STEELYARD_METRICS_PORT=9100
USER 10001:10001
EXPOSE 8080 8081 9100
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["python", "deploy/healthcheck.py"]
CMD ["python", "-m", "app.bootstrap.gateway"]
