"""Bundle a page as one file, with its data, scripts and a content policy of hashes.

`page` builds the page for some configurations of one model, `result_page` the page of a result, and
`server_page` the page that the page server sends. `answer` returns another configuration for an open page as
data: functions are sent as lists of numbers, not as code.
"""

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
from typing import Any

from llmir.base.errors import InputError

from .functions import Listing
from .setups import Setup, SetupTables, choices, document

# Setups for an open page

# Values of every configuration of a served page, so that all keys are present.
_DEFAULT_CHOICES = {"tp": 1, **dict.fromkeys(("weights", "activations", "kv", "engine", "cost"))}


def answer(setup: Setup, asked: str) -> dict[str, Any]:
    """The data of a configuration for JSON: tables, graphs, and the name by which the page requested the
    model.

    InputError if the configuration is impossible, or if a step is not a function of three sizes:
    `RequestCode`.
    """
    if setup.why or setup.program is None:
        raise InputError(setup.why)
    listing = Listing()
    tables = SetupTables(listing)
    values = {name: value for name, value in setup.values.items() if value is not None}
    own = tables.setup(setup) | {"choices": setup_key(setup), "values": values}
    return {
        "model": setup.program.name,
        "asked": asked,
        "setup": own,
        "rates": list(listing.told),
        "tables": tables.tables,
        "graphs": tables.graphs.all,
        "functions": listing.all,
    }


def setup_key(setup: Setup) -> dict[str, str]:
    """The key of a configuration, unique among all models."""
    assert setup.program is not None
    assert setup.model is not None
    names = {str(setup.values["hw"]): setup.model.device.name}
    said = Setup({**_DEFAULT_CHOICES, **setup.values}, setup.program, setup.model)
    return {"model": setup.program.name, **choices(said, names)}


# Pages as files

MOST = 64  # configurations
SIZE = 5_000_000  # bytes
_MADE = "made"  # by `make web`, from the modules in this folder
_BUNDLED = "d3.js"


def page(setups: Sequence[Setup], start: Mapping[str, int], version: str, max_size: int = SIZE) -> str:
    """The page of some configurations of one model; impossible ones show the reason. `start` contains the
    initial positions of the sliders.

    The page works from a file, without a server. InputError for too many configurations or bytes, if no
    configuration is possible, or if a step is not a function of three sizes: `RequestCode`.
    """
    if len(setups) > MOST:
        raise InputError(f"{len(setups):,} configurations; a page has at most {MOST}; leave some values out")
    told, functions = document(setups, start, version)
    made, _ = _whole(_read_asset("index.html"), told, "main", functions.source, _read_asset("style.css"))
    return _sized(made, max_size, f"ask for fewer set-ups than {len(setups)}" if len(setups) > 1 else "")


def result_page(told: Mapping[str, Any], max_size: int, fewer: str) -> str:
    """The page of a result; `told` contains its views (`llmir.backends.export.page.document`).

    InputError if the page exceeds `max_size` bytes; `fewer` is the advice in the message.
    """
    before, main, _ = _read_asset("index.html").partition("<main")
    _, end, after = _read_asset("index.html").partition("</main>")
    shell = f'{before}{main} id="main" hidden>{end}{after}'
    made, _ = _whole(shell, told, "results", "", _read_asset("style.css") + _read_asset("results.css"))
    return _sized(made, max_size, fewer)


def server_page(setup: Setup, asked: str, start: Mapping[str, int], version: str) -> tuple[str, str]:
    """The page of a model that is requested by name, and its content policy; it requests other models from
    its own server.

    It runs only its own code: configurations arrive as data.
    """
    told, functions = document([setup], start, version)
    told["setups"][0]["choices"] = setup_key(setup)
    told |= {"asked": asked, "sent": "set-ups come from the server that it is from"}
    style = _read_asset("style.css") + _read_asset("served.css")
    return _whole(_read_asset("index.html"), told, "served", functions.source, style, "connect-src 'self'; ")


def _whole(
    shell: str, told: Mapping[str, Any], entry: str, code: str, style: str, more: str = ""
) -> tuple[str, str]:
    """A page with all its parts, and its content policy, which also allows `more`.

    It contains the data of the page, the entry module, functions, and styles.
    """
    script, opening = _script(entry), _read_asset("open.js")
    scripts = " ".join(map(_hash, (opening, code, script)))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {_hash(style)}; img-src data:; {more}"
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(f"{told['model']}: llmir"),
        "style": style,
        "data": _packed(json.dumps(told, separators=(",", ":"), allow_nan=False)),
        "functions": _packed(code),
        "page": _packed(script),
        "notices": _notices(),
        "script": opening,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], shell), policy


def _sized(made: str, max_size: int, fewer: str) -> str:
    if (size := len(made.encode())) > max_size:
        ways = f"{fewer}, or raise --max-size" if fewer else "raise --max-size"
        raise InputError(f"the page has {size:,} bytes, more than {max_size:,}; {ways}")
    return made


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@lru_cache(maxsize=4)
def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@lru_cache(maxsize=1)
def _notices() -> str:
    """The licenses of third-party code, as a comment."""
    found = re.findall(r"/\*!(.*?)\*/", _read_asset(_BUNDLED), re.DOTALL)
    return "".join(f"\n{notice.strip()}\n" for notice in found).replace("--", "- -")


@lru_cache(maxsize=32)
def _read_asset(name: str) -> str:
    folder = files(__package__)
    return (folder if name.endswith(".html") else folder.joinpath(_MADE)).joinpath(name).read_text("utf-8")


@lru_cache(maxsize=3)
def _script(entry: str) -> str:
    """A module and the modules that it imports as one script, because modules in files cannot import each
    other; d3 comes first.
    """
    return re.sub(r"/\*!.*?\*/\n", "", _read_asset(_BUNDLED), flags=re.DOTALL) + _read_asset(f"{entry}.js")
