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
if has_uv; then
    uv pip sync --require-hashes --python .venv/bin/python "$lock"
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip --upgrade >/dev/null
else
    # Bytecode is written on first import: compiling all of it here would take longer than the first start.
    .venv/bin/python -m pip install --disable-pip-version-check --no-input --no-deps --no-compile \
        --require-hashes --requirement "$lock"
fi

cat > .venv/bin/steelyard <<'WRAPPER'
#!/bin/sh
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$root/.venv/bin/python" -m app.cli.main "$@"
WRAPPER
chmod 755 .venv/bin/steelyard
