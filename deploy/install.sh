#!/bin/sh
# Makes .venv from a lock file, by hash, and the command .venv/bin/steelyard. Usage: install.sh PYTHON LOCK
set -eu
python=$1
lock=$2

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "error: $python is not Python 3.11 or newer; name one: make up PYTHON=/path/to/python3.12" >&2
    exit 1
fi

has_uv() { command -v uv >/dev/null 2>&1; }

# One line, unless a person watches a first installation, which takes minutes: then progress bars too.
quiet=--quiet
if [ -t 1 ] && ! [ -x .venv/bin/steelyard ]; then
    quiet=
fi

if ! [ -x .venv/bin/python ]; then
    echo "Making .venv ..."
    if ! "$python" -m venv .venv 2>/dev/null; then
        rm -rf .venv
        if has_uv; then
            uv venv --quiet --seed --python "$python" .venv
        else
            echo "error: $python can't make environments; on Debian: apt install python3-venv" >&2
            exit 1
        fi
    fi
fi

echo "Installing $lock ..."
with_uv() {
    # shellcheck disable=SC2086 # no word if it is not to be quiet
    has_uv && uv pip install $quiet --no-deps --require-hashes --python .venv/bin/python --requirement "$lock"
}
with_pip() {
    # shellcheck disable=SC2086
    .venv/bin/python -m pip install $quiet --disable-pip-version-check --no-input --no-deps --no-compile \
        --require-hashes --requirement "$lock"
}
# uv does not read pip's configuration: where packages come from a mirror that only pip knows, pip gets them.
with_uv || with_pip

# Compile once, on all cores, what every process imports; the rest is compiled when it is first used.
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
.venv/bin/python -m compileall -q -j 0 app billing scheduler migrations \
    "$site/alembic" "$site/anyio" "$site/asyncpg" "$site/billiard" "$site/celery" "$site/click" "$site/fastapi" \
    "$site/httpx" "$site/httpcore" "$site/jinja2" "$site/kombu" "$site/prometheus_client" "$site/pydantic" \
    "$site/pydantic_settings" "$site/redis" "$site/rich" "$site/sqlalchemy" "$site/starlette" "$site/typer" ||
    echo "note: some modules were not compiled; the first start takes longer" >&2

cat > .venv/bin/steelyard <<'WRAPPER'
#!/bin/sh
unset PYTHONDONTWRITEBYTECODE # without kept bytecode a start takes three times as long
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$root/.venv/bin/python" -m app.cli.main "$@"
WRAPPER
chmod 755 .venv/bin/steelyard
