#!/usr/bin/env bash
# Print the path of a Chromium or Chrome. Where there is none and we may (root on Debian or Ubuntu), install it.
set -uo pipefail

find_chromium() {
    local program
    for program in "${CHROMIUM:-}" "$(command -v chromium)" "$(command -v chromium-browser)" \
        "$(command -v google-chrome)" "$(command -v google-chrome-stable)" "$(command -v chrome)" \
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" \
        /Applications/Chromium.app/Contents/MacOS/Chromium; do
        [ -n "$program" ] && [ -x "$program" ] && echo "$program" && return 0
    done
    return 1
}

find_chromium && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no Chromium found: installing one with apt-get" >&2
    {
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends chromium ||
            apt-get install -y -qq --no-install-recommends chromium-browser
    } >/dev/null 2>&1
    find_chromium && exit 0
fi
echo "the dashboard's tests need Chromium: install it (Debian, Ubuntu: sudo apt-get install chromium; macOS: brew install --cask chromium) or set CHROMIUM to its path" >&2
exit 1
