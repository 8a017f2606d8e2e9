"""The modes that send tokens to experts on other ranks, by name.

`rows` sends each routed row, `ranks` sends a token once to each rank that has one of its experts, and
`gather` collects all tokens on all ranks.
"""

from __future__ import annotations

FORMS = ("rows", "ranks", "gather")
