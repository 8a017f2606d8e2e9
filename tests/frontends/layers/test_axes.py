"""The page on sharding lists each code of an axis with its role."""

from __future__ import annotations

import re
from pathlib import Path

from llmir.frontends.layers.blocks import AXES

PAGE = Path(__file__).parents[3] / "docs" / "sharding.md"


def test_the_page_lists_the_role_of_each_code() -> None:
    table = PAGE.read_text("utf-8").split("| role | codes | axis |")[1].split("\n\n")[0]
    rows = [
        [re.findall(r"`(\w+)`", cell) for cell in line.split("|")[1:3]] for line in table.splitlines()[2:]
    ]
    codes = [code for _, listed in rows for code in listed]
    assert sorted(codes) == sorted(AXES)
    for roles, listed in rows:
        assert {AXES[code] for code in listed} == set(roles)
