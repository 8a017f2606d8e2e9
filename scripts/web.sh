#!/bin/sh
# What pages run, bundled and minified anew: backends/export/page/made. Needs npm; users need neither.
set -eu
cd "$(dirname "$0")/web"
npm ci --silent --ignore-scripts
node build.mjs ../../backends/export/page ../../backends/export/page/made
