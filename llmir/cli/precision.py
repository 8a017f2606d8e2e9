"""From `--weights`, `--activations`, `--kv` and `--plan` to the pass that does it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmir import strict_yaml
from llmir.errors import InputError

if TYPE_CHECKING:
    from llmir.passes.quantize import Quantize

_LARGEST_PLAN = 2**20


def quantize(given: Mapping[str, Any]) -> list[Quantize]:
    """The pass that the options ask for, if any."""
    for name in ("weights", "activations", "kv", "plan"):
        if given.get(name) == "":
            raise InputError(f"--{name}: it is empty; leave it out, or see --help")
    roles = {name: given[name] for name in ("weights", "activations", "kv") if given.get(name)}
    plan = read_plan(given["plan"]) if given.get("plan") else {}
    if not roles and not plan:
        return []
    from llmir.passes.quantize import Quantize

    return [Quantize(**roles, plan=plan)]


def read_plan(path: str) -> dict[str, str]:
    """A YAML mapping of modules to dtypes; `InputError` for a file that is none."""
    import yaml

    try:
        with open(os.path.expanduser(path), "rb") as stream:
            data = stream.read(_LARGEST_PLAN + 1)
        if len(data) > _LARGEST_PLAN:
            raise InputError(f"{path}: too large for a plan")
        plan = strict_yaml.load(data.decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{path}: broken YAML{where}: {getattr(error, 'problem', None) or error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not a plan") from None
    expected = "expected modules with their dtypes, such as down_proj: bf16"
    if not isinstance(plan, dict) or not plan:
        raise InputError(f"{path}: {expected}, got {type(plan).__name__}")
    for module, name in plan.items():
        if not isinstance(module, str) or not isinstance(name, str):
            raise InputError(f"{path}: {expected}, got {str(module)[:60]}: {str(name)[:60]}")
    return plan
