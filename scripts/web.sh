#!/bin/sh
# What pages run, bundled and minified anew: backends/export/web/made. Needs npm; users need neither.
set -eu
cd "$(dirname "$0")/web"
npm ci --silent --ignore-scripts
node build.mjs ../../backends/export/web ../../backends/export/web/made
