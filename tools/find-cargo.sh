#!/usr/bin/env bash
# Print the path of Cargo 1.85 or newer. Where there is none and we may (root on Debian or Ubuntu), install it with its compilers.
set -uo pipefail

is_new() { # is_new CARGO
    local version
    version=$("$1" --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p')
    [ "${version:-0}" -ge 85 ]
}

find_cargo() {
    local program
    for program in "${CARGO:-}" "$(command -v cargo)" "$HOME/.cargo/bin/cargo" /usr/bin/cargo; do
        [ -n "$program" ] && [ -x "$program" ] && is_new "$program" && echo "$program" && return 0
    done
    return 1
}

find_cargo && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no Cargo 1.85 found: installing one with apt-get" >&2
    {
        apt-get update -qq
        # Bookworm's newer compiler goes by the name of the browsers that it is there for.
        apt-get install -y -qq --no-install-recommends cargo-web rustc-web gcc libc6-dev ||
            apt-get install -y -qq --no-install-recommends cargo rustc gcc libc6-dev
    } >/dev/null 2>&1
    find_cargo && exit 0
fi
echo "RocketMQ's Rust client is built with Cargo 1.85 or newer and a C compiler: install them (Debian 12: sudo apt-get install cargo-web rustc-web gcc; later ones: cargo rustc gcc; elsewhere rustup) or set CARGO to its path" >&2
exit 1
