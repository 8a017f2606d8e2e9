"""What there is to build with: the ops of graphs, and the passes of pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from llmir.base.errors import InputError
from llmir.base.names import suggest
from llmir.ir.core.op import OPS
from llmir.ir.ops import describe as described
from llmir.ir.tools.pipeline import PASSES, describe

from . import table
from .rows import Rows

if TYPE_CHECKING:
    from rich.console import RenderableType


def passes(default: str, engines: Mapping[str, str]) -> Rows:
    """A row for each pass, with its options; and the `default` pipelines of engines, and without one."""
    found = [{"name": name, **describe(kind)} for name, kind in PASSES.items()]
    shown = table.columns(("pass", "what it does"), prose=("what it does",))
    for p in found:
        table.add(shown, (p["name"], p["summary"]), styles=["bold"])
        for option in p["options"]:
            table.add(shown, ("", f"  {_option(option)}"))
    rows = [{**p, "options": " ".join(map(_option, p["options"]))} for p in found]
    runs: dict[str, list[str]] = {}
    for engine, pipeline in (*engines.items(), ("a program without an engine", default)):
        runs.setdefault(pipeline, []).append(engine)
    usual: list[str] = []
    for pipeline, of in runs.items():
        steps = wrap(pipeline.replace(",", ", "), 76, break_on_hyphens=False)
        usual += [f"default of {', '.join(of)}:", *(f"  {line}" for line in steps)]
    data = {"default": default, "engines": dict(engines), "passes": found}
    return Rows(rows, table.stack(shown, "", *usual), data)


def ops(name: str | None = None) -> Rows:
    """A row for each op; of one, all that its class says. InputError if there is none of that name."""
    if name is not None and name not in OPS:
        raise InputError(f"op {name!r} does not exist; there are {', '.join(OPS)}{suggest(name, OPS)}")
    found = [described(OPS[name])] if name else [described(kind) for kind in OPS.values()]
    rows = [{**op, "attributes": " ".join(map(_attribute, op["attributes"]))} for op in found]
    return Rows(rows, _one(found[0]), found[0]) if name else Rows(rows, _all(found), found)


def _option(option: Mapping[str, Any]) -> str:
    """`tp: int = 1`, or `tp: int` for what must be given."""
    default = "" if option["required"] else f" = {option['default']!r}"
    return f"{option['name']}: {option['type']}{default}"


def _attribute(attribute: Mapping[str, Any]) -> str:
    """`eps: float = 1e-06`, or `einsum: str` for what must be given."""
    return _option({"required": "default" not in attribute, **attribute})


def _all(found: list[dict[str, Any]]) -> RenderableType:
    shown = table.columns(("op", "kind", "what it does"), prose=("what it does",))
    for op in found:
        table.add(shown, (op["name"], op["kind"], op["summary"]), styles=["bold"])
    return shown


def _one(op: Mapping[str, Any]) -> RenderableType:
    given = ", ".join(filter(None, (op["takes"], *map(_attribute, op["attributes"]))))
    facts = [(name.replace("_", " "), op[name]) for name in ("kind", "equation", "flops", "defined_in")]
    return table.stack(
        table.pairs([("method", f"{op['name']}({given})"), *facts]), "", *op["doc"].splitlines()
    )
