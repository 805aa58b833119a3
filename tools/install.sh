#!/usr/bin/env bash
# Install the pinned requirements of file $2 with the interpreter $1, and say how far it is. Further arguments are pip's:
# with --no-compile modules are compiled when they are first imported, and not all 6,000 before.
set -euo pipefail
python=$1 requirements=$2
shift 2
# Targets that make builds side by side share the environment.
if command -v flock >/dev/null; then
    exec 9>"$python.installing"
    flock 9
fi
echo "installing $(grep -c == "$requirements") pinned packages of $requirements"
# All packages are named there, with what they need: nothing is left to resolve.
"$python" -m pip install --disable-pip-version-check --no-deps "$@" -r "$requirements" |
    awk -v total="$(grep -c == "$requirements")" '
        /^(Collecting|Requirement already)/ { printf "\r  %d of %d ", ++count, total; fflush() }
        /^Installing/ { printf "\r  unpacking  "; fflush() }
        END { printf "\r             \r" }'
