#!/bin/sh
# Builds the wheel into dist/ with python $1, then uses it from another folder in a fresh environment.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
away=$(mktemp -d)
trap 'rm -rf "$away"' EXIT

rm -rf build dist
"$python" -m pip wheel . -qq --disable-pip-version-check --no-deps -w dist
"$python" -m venv "$away/venv"
"$away/venv/bin/python" -m pip install -qq --disable-pip-version-check dist/*.whl
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
echo "wheel: $(cd - >/dev/null && ls dist/*.whl) works from another folder"
