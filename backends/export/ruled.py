"""A table whose rule is as long as its rows, whichever rich draws it."""

from __future__ import annotations

from rich.table import Table


class Ruled(Table):
    """Rich before 14.3 counts a padding of the last column that it does not draw: its rules are too long."""

    def _get_padding_width(self, column_index: int) -> int:
        _, right, _, left = self.padding
        return (left if column_index else 0) + (right if column_index + 1 < len(self.columns) else 0)
