"""Totals of the bundled models against those of transformers' classes, built from the same configs.

    python scripts/preset_totals.py [NAME…]

Needs torch and transformers; models are built on the meta device, without weights.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from llmir.frontends.models.presets import PRESETS, Preset


def plain(value: object) -> Any:
    """A config's value as JSON has it."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def built(preset: Preset) -> int | str:
    """The parameters of transformers' model, shared ones once; or why there is none."""
    fields = plain(preset.config)
    cls = getattr(transformers, "".join(fields.pop("architectures", ())), None)
    if cls is None:
        return "not in transformers"
    del fields["model_type"]
    try:
        with torch.device("meta"):
            model = cls(cls.config_class(**fields))
    except Exception as error:  # whatever a class raises of a config
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    """Say each that is not equal, and how many of which outcome there are."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    found: Counter[str] = Counter()
    for name in sys.argv[1:] or PRESETS:
        preset = PRESETS[name]
        theirs = built(preset)
        outcome = (
            "equal" if theirs == preset.parameters else "different" if type(theirs) is int else "no model"
        )
        found[outcome] += 1
        if outcome != "equal":
            print(f"{name}: {preset.parameters:,}; {theirs if isinstance(theirs, str) else f'{theirs:,}'}")
    print(dict(found))


if __name__ == "__main__":
    main()
