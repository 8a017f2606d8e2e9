"""From `--weights`, `--activations`, `--kv`, `--collectives` and `--plan` to the passes that do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmir.errors import InputError

if TYPE_CHECKING:
    from llmir.passes.quantize import Quantize

Plan = Mapping[str, Mapping[str, str]]

_BEFORE = ("weights", "activations", "kv")


def quantize(given: Mapping[str, Any]) -> tuple[list[Quantize], list[Quantize]]:
    """The passes that the options ask for: before a program is laid over its ranks, and after."""
    for name in (*_BEFORE, "collectives", "plan"):
        if given.get(name) == "":
            raise InputError(f"--{name}: it is empty; leave it out, or see --help")
    plan: Plan = {}
    if given.get("plan"):
        from llmir.passes.modules import plan_file

        plan = plan_file(given["plan"])
    sent = {module: {r: said[r] for r in said if r == "collectives"} for module, said in plan.items()}
    rest = {module: {r: said[r] for r in said if r != "collectives"} for module, said in plan.items()}
    return _pass(given, _BEFORE, rest), _pass(given, ("collectives",), sent)


def _pass(given: Mapping[str, Any], roles: Sequence[str], plan: Plan) -> list[Quantize]:
    """The pass for some roles, and for what a plan says of them, if there is any."""
    asked = {name: given[name] for name in roles if given.get(name)}
    plan = {module: said for module, said in plan.items() if said}
    if not asked and not plan:
        return []
    from llmir.passes.quantize import Quantize

    return [Quantize(**asked, plan=plan)]
