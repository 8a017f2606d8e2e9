"""Which text models of vLLM's llmir loads, with parameters against transformers' meta models, as a table.

    python scripts/coverage.py docs/coverage.md

Needs torch and transformers. Each class is built from its own default config, without weights.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

import llmir
from llmir.base.errors import LlmirError
from llmir.frontends.config.family import FAMILIES

CLASSES = [
    line
    for line in Path(__file__).with_suffix(".txt").read_text("utf-8").split("\n")
    if line and line[0] != "#"
]
# What transformers calls them.
SPELLED = {
    "PhiMoEForCausalLM": "PhimoeForCausalLM",
    "MPTForCausalLM": "MptForCausalLM",
    "RWForCausalLM": "FalconForCausalLM",
}
# Fields without which a class cannot be built.
NEEDED: dict[str, dict[str, Any]] = {
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"] * 16},
}

HEAD = """# Which model classes load

    python scripts/coverage.py docs/coverage.md

This table lists the text decoders that vLLM registers. Each was built by transformers {version} from the
default config of its class, on the meta device, and loaded by llmir from the same config. *equal* means equal
numbers of parameters. *not runnable* means that the class cannot run its own default config.

{counts}

| class | transformers' parameters | llmir |
|---|---|---|
"""


def built(name: str, kind: Any) -> tuple[int, dict[str, Any]]:
    """Parameters of a class's default model, shared ones once, and its config."""
    config = kind.config_class(**NEEDED.get(kind.__name__, {}))
    with torch.device("meta"):
        model = kind(config)
    return sum(p.numel() for p in model.parameters()), {**config.to_dict(), "architectures": [name]}


def broken(kind: Any) -> str:
    """Why a class's default model cannot take tokens, whatever its weights; "" if nothing says so."""
    try:
        with torch.device("meta"):
            kind(kind.config_class())(torch.zeros(1, 2, dtype=torch.long))
    except TypeError as error:
        return str(error).partition("\n")[0]
    except Exception:  # what meta tensors alone cannot do, such as to say which experts are chosen
        pass
    return ""


def outcome(name: str) -> tuple[str, str, str]:
    """Parameters, verdict and what there is to say of a class."""
    kind = getattr(transformers, SPELLED.get(name, name), None)
    if kind is None:
        return "", "in llmir" if name in FAMILIES else "refused", "not in transformers"
    try:
        parameters, config = built(name, kind)
    except Exception as error:  # whatever a class raises of its own defaults
        return "", "not built", f"transformers: {type(error).__name__}"
    try:
        ours = llmir.load(config).parameters
    except LlmirError as error:
        if why := broken(kind):
            return "", "not runnable", f"transformers: {why}"
        fact = "" if name not in FAMILIES else str(error)
        return f"{parameters:,}", "refused", fact
    equal = ours == parameters
    return f"{parameters:,}", "equal" if equal else "DIFFERENT", "" if equal else f"{ours:,}"


def main() -> None:
    """Print the table, or write it."""
    warnings.filterwarnings("ignore")
    rows = [(name, *outcome(name)) for name in CLASSES]
    counts = Counter((verdict, bool(parameters)) for _, parameters, verdict, _ in rows)
    compared = sum(n for (_, there), n in counts.items() if there)
    said = (
        f"Of {compared} classes with a default config, {counts['equal', True]} are equal, "
        f"{counts['DIFFERENT', True]} differ, {counts['refused', True]} refused by name. "
        f"{len(rows) - compared} other classes have no default config."
    )
    lines = [f"| `{n}` | {p} | {v}{f' ({why})' if why else ''} |" for n, p, v, why in rows]
    text = HEAD.format(version=transformers.__version__, counts=said) + "\n".join(lines) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    print(text if len(sys.argv) < 2 else said)


if __name__ == "__main__":
    main()
