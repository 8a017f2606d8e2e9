"""How tokens come to experts of other ranks, by name: each row, once to each rank, or all to all ranks."""

from __future__ import annotations

FORMS = ("rows", "ranks", "gather")
