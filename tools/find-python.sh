#!/usr/bin/env bash
# Print the Python interpreter for the environment: python3.11 of the PATH, or else python3. If the machine has several
# builds of that version, a build with profile-guided optimisation is preferred: other builds need a quarter more CPU.
set -uo pipefail

usable() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }
version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
optimised() { "$1" "$(dirname "$0")/../ops/interpreter.py" --is-optimised; }

default=$(command -v python3.11 || command -v python3) || exit 0
wanted=$(version "$default") || exit 0
for python in $(type -a -p "python$wanted") {/usr,/usr/local,/opt/homebrew}/bin/"python$wanted" "$default"; do
    if [ -x "$python" ] && usable "$python" && optimised "$python"; then
        echo "$python"
        exit 0
    fi
done
echo "$default"
