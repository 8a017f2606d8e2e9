"""YAML as plain data, in which a repeated key is a mistake and nothing is run."""

from __future__ import annotations

from functools import cache
from typing import Any


def load(data: bytes | str) -> Any:
    """What the text says; `yaml.YAMLError` if it is not YAML, or repeats a key.

    A scalar that does not fit its tag, such as `!!int x`, leaves PyYAML as whatever its constructor raised.
    """
    import yaml

    return yaml.load(data, _loader())


@cache
def _loader() -> Any:
    import yaml

    # The C parser is several times faster, and not everywhere.
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc] # one of two bases, known only here
        """A safe loader to which a repeated key is a mistake, not a silent overwrite."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[object] = set()
            for key, _ in node.value:
                if isinstance(key.value, str) and key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"key {key.value!r} twice", problem_mark=key.start_mark
                    )
                seen |= {key.value} if isinstance(key.value, str) else set()
            plain: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            return plain

    return Loader
