"""From `--weights`, `--activations`, `--kv`, `--collectives` and `--plan` to the passes that do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmir import strict_yaml
from llmir.errors import InputError, UnreadableError
from llmir.reading import contents

if TYPE_CHECKING:
    from llmir.passes.quantize import Quantize

Plan = dict[str, dict[str, str]]

_BEFORE = ("weights", "activations", "kv")


def quantize(given: Mapping[str, Any]) -> tuple[list[Quantize], list[Quantize]]:
    """The passes that the options ask for: before a program is laid over its ranks, and after."""
    for name in (*_BEFORE, "collectives", "plan"):
        if given.get(name) == "":
            raise InputError(f"--{name}: it is empty; leave it out, or see --help")
    plan = read_plan(given["plan"]) if given.get("plan") else {}
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


def read_plan(path: str) -> Plan:
    """A YAML mapping of modules to dtypes by role, or to those of their weights; `InputError` for another."""
    try:
        plan = strict_yaml.load(contents(path, strict_yaml.BUDGET))
    except UnreadableError as error:
        raise InputError(f"{path}: {error}") from None
    expected = "expected modules with their dtypes, such as down_proj: bf16 or mlp: {activations: keep}"
    if not isinstance(plan, dict) or not plan:
        raise InputError(f"{path}: {expected}, got {type(plan).__name__}")
    for module, said in plan.items():
        inner = [*said, *said.values()] if isinstance(said, dict) else [said]
        if not said or not all(isinstance(text, str) for text in (module, *inner)):
            raise InputError(f"{path}: {expected}, got {str(module)[:60]}: {str(said)[:60]}")
    return {module: said if isinstance(said, dict) else {"weights": said} for module, said in plan.items()}
