#!/bin/sh
# Creates the virtual environment $2 with python $1, installs llmir with the extra $3 (optional) in it, and
# installs Graphviz's dot if possible. Parts that exist already stay unchanged.
set -eu
python=$1 venv=$2 extra=${3:-}

# Installs Debian packages as root, or with a sudo that asks nothing; fails where neither is at hand.
apt() {
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" = 0 ]; then sudo=; elif sudo -n true 2>/dev/null; then sudo="sudo -n"; else return 1; fi
    $sudo apt-get update -qq >/dev/null 2>&1 || true
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
    echo "setup: llmir needs Python 3.10 or later, and '$python' is not; say which with make PYTHON=python3.12" >&2
    exit 1
}

if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    # Debian keeps ensurepip, which venv needs, in a package of its own.
    "$python" -c 'import ensurepip' 2>/dev/null || apt python3-venv || {
        echo "setup: '$python -m venv' needs ensurepip; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 1
    }
    "$python" -m venv --clear "$venv"
fi
echo "setup: installing llmir${extra:+ and the packages of its extra $extra} in $venv"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check -e ".${extra:+[$extra]}"

if ! command -v dot >/dev/null; then
    echo "setup: Graphviz is missing, trying to install it"
    apt graphviz || { command -v brew >/dev/null && brew install --quiet graphviz; } || true
    command -v dot >/dev/null ||
        echo "setup: pictures need Graphviz's dot: apt-get install graphviz, brew install graphviz, or graphviz.org/download"
fi
echo "setup: done; \`. $venv/bin/activate\` puts llmir on the path"
