"""Results whose pages tests open, each made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import llmir


def _plan() -> Any:
    asked = {"rate": 20, "prompt": 1000, "generate": 100, "max_ttft": "200ms", "max_tpot": "12ms"}
    return llmir.plan("llama3.1-8b", "h100-sxm,a100", gpus=8, requests=200, **asked)


RESULTS: dict[str, Callable[[], Any]] = {"plan": _plan}


@cache
def made(name: str) -> Any:
    """One of them."""
    return RESULTS[name]()
