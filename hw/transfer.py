"""Errors of kernels transferred from another device or engine, by relation and kernel group.

The values are measured and stored in `transfer.yaml`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from .schema import parse

FILE = Path(__file__).parent / "transfer.yaml"
# The relations of two devices, from similar to different; and the relation of two engines on one device.
SAME_DIE, SAME_SM, OTHER_SM = "same die", "same SM", "other SM"
OTHER_MEMORY, OTHER_VENDOR = "other memory", "other vendor"
RELATIONS = (SAME_DIE, SAME_SM, OTHER_SM, OTHER_MEMORY, OTHER_VENDOR)
ENGINE = "other engine"


@functools.cache
def table() -> Mapping[str, Mapping[str, float]]:
    """Mean relative errors by relation and group, as ratios."""
    said = parse(FILE)
    return MappingProxyType(
        {
            relation: MappingProxyType({g: percent / 100 for g, percent in said[relation].items()})
            for relation in (*RELATIONS, ENGINE)
        }
    )


def to_yaml(percents: Mapping[str, Mapping[str, float]]) -> str:
    """The text of the file with new percentages; its header comment is unchanged."""
    head = FILE.read_text(encoding="utf-8").partition(f"{SAME_DIE}:")[0]
    lines = [
        f"{relation}: {{{', '.join(f'{group}: {round(value)}' for group, value in groups.items())}}}"
        for relation, groups in percents.items()
    ]
    return head + "".join(f"{line}\n" for line in lines)
