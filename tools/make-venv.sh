#!/usr/bin/env bash
# Make the virtual environment $VENV with $PYTHON from the pinned requirements file $1.
set -euo pipefail
requirements=$1
if [ -L "$VENV" ]; then # to make it anew would empty the environment of another checkout
    echo "$VENV is a link to $(readlink "$VENV"): run make in the checkout that it belongs to" >&2
    exit 1
fi
if [ -z "${PYTHON:-}" ]; then
    echo "python 3.11 or newer is needed and was not found on the PATH" >&2
    exit 1
fi
"$PYTHON" - <<'PY'
import sys
if sys.version_info < (3, 11):
    sys.exit(f"python 3.11 or newer is needed; this one is {sys.version.split()[0]}")
PY
if ! "$PYTHON" -m venv --clear "$VENV" 2>/tmp/make-venv.$$; then
    # Debian ships venv's pip in a package of its own.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing python3-venv" >&2
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv; } >/dev/null
        "$PYTHON" -m venv --clear "$VENV"
    else
        cat /tmp/make-venv.$$ >&2
        exit 1
    fi
fi
rm -f /tmp/make-venv.$$
echo "$VENV uses $PYTHON: $("$VENV/bin/python" "$(dirname "$0")/../ops/interpreter.py")"
"$(dirname "$0")/install.sh" "$VENV/bin/python" "$requirements"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -e .
