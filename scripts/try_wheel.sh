#!/bin/sh
# Installs the wheel $2 in a fresh environment made by python $1, and uses it from another folder.
# Then runs the remaining arguments as a command, with RUN set to the folder of the environment's programs.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
wheel=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
shift 2
away=$(mktemp -d)
trap 'rm -rf "$away"' EXIT

"$python" -m venv "$away/venv"
"$away/venv/bin/python" -m pip install -qq --disable-pip-version-check "$wheel"
cd "$away"
unset PYTHONPATH
"$away/venv/bin/llmir" --version
"$away/venv/bin/python" - <<'CHECK'
from importlib.metadata import files
from pathlib import Path

import llmir
from llmir.hw import library

program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
assert llmir.analyze(program, "h100-sxm", batch=1, new=1, context=2048).time_s > 0
assert len(library.names()) >= 24, library.names()
assert (Path(llmir.__file__).parent / "py.typed").exists()
tops = {f.parts[0] for f in files("llmir") or () if f.parts[0] != ".."}
assert tops <= {"llmir"} | {t for t in tops if t.endswith(".dist-info")}, tops
CHECK
[ $# = 0 ] || "$@" RUN="$away/venv/bin"
echo "wheel: $(basename "$wheel") works in a fresh environment"
