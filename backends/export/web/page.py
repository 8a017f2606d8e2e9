"""A page that computes, as one file: what it is told, and what it runs, under a policy of hashes."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files

from llmir.errors import InputError

from .setups import Setup, document

MOST = 64  # set-ups
SIZE = 5_000_000  # bytes
_IMPORT = re.compile(r'^import .*? from "\./([a-z0-9]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_BUNDLED = "d3.js"


def page(setups: Sequence[Setup], start: Mapping[str, int], version: str, max_size: int = SIZE) -> str:
    """The page of some set-ups of one model, of which those that cannot be say why; `start` has the sliders.

    It opens from a file and asks no server. InputError where there are too many set-ups or bytes, or none
    that can be, and for what is no function of three sizes: `RequestCode`.
    """
    if len(setups) > MOST:
        raise InputError(f"{len(setups):,} set-ups; a page has {MOST} at most, leave some values out")
    told, functions = document(setups, start, version)
    code = functions.source
    text = f"{json.dumps(told, separators=(',', ':'))}\n{code}"
    packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    script, style = _script(), _read("style.css")
    scripts = " ".join(map(_hash, (script, code)))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(f"{told['model']}: llmir"),
        "style": style,
        "data": packed,
        "script": script,
    }
    made = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("index.html"))
    if (size := len(made.encode())) > max_size:
        fewer = f"ask for fewer set-ups than {len(setups)}, or raise --max-size"
        raise InputError(f"the page has {size:,} bytes, more than {max_size:,}; {fewer}")
    return made


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@lru_cache(maxsize=32)
def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _script() -> str:
    """All modules as one script, for files take no imports: each after those that it names."""
    found: dict[str, str] = {}

    def add(name: str) -> None:
        source = _read(name)
        for other in _IMPORT.findall(source):
            if other not in found:
                add(other)
        found[name] = _EXPORT.sub("", _IMPORT.sub("", source))

    add("main.js")
    own = "".join(found.values())
    return f'{_read(_BUNDLED)}(() => {{\n"use strict";\n{own}}})();\n'
