#!/bin/sh
# The part of d3 that pages have, bundled anew: backends/export/web/d3.js. Needs npm; users need neither.
set -eu
cd "$(dirname "$0")/web"
npm ci --silent --ignore-scripts
node build.mjs ../../backends/export/web/d3.js
