#!/usr/bin/env bash
# Install a file of pinned requirements with the interpreter $1, and say how far it is.
set -euo pipefail
python=$1 requirements=$2
# Targets that make builds side by side share the environment.
if command -v flock >/dev/null; then
    exec 9>"$python.installing"
    flock 9
fi
echo "installing $(grep -c == "$requirements") pinned packages of $requirements"
# All packages are named there, with what they need: nothing is left to resolve.
"$python" -m pip install --disable-pip-version-check --no-deps -r "$requirements" |
    awk -v total="$(grep -c == "$requirements")" '
        /^(Collecting|Requirement already)/ { printf "\r  %d of %d ", ++count, total; fflush() }
        /^Installing/ { printf "\r  unpacking  "; fflush() }
        END { printf "\r             \r" }'
