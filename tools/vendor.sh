#!/bin/sh
# Copy the renderer of /docs and the dashboard's charts from the packages that
# web/reference/package-lock.json pins. Needs npm; run it after a change of a version, and commit
# what it writes.
set -eu
cd "$(dirname "$0")/../web/reference"
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cp package.json package-lock.json "$place"
(cd "$place" && npm ci --ignore-scripts --no-audit --no-fund)
gzip -9 -n -c "$place/node_modules/rapidoc/dist/rapidoc-min.js" > rapidoc.js.gz
cp "$place/node_modules/rapidoc/LICENSE.txt" LICENSE-rapidoc.txt
dashboard=../../namesrv/http/dashboard
{ cat "$place/node_modules/uplot/dist/uPlot.iife.min.js"; echo 'export default uPlot;'; } > $dashboard/uplot.js
cp "$place/node_modules/uplot/dist/uPlot.min.css" $dashboard/uplot.css
cp "$place/node_modules/uplot/LICENSE" $dashboard/LICENSE-uplot.txt
