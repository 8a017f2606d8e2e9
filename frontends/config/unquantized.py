"""The modules that a quantized checkpoint leaves as they are, layer by layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from llmir.base.errors import ConfigError, UnsupportedError
from llmir.base.names import layered, numbered, stored
from llmir.ir.core.program import Instance, Program
from llmir.ir.sizes.binding import Binding

from .source import show

_WHERE = "$.quantization_config"

Apart = tuple[frozenset[str], ...]
"""For each layer the modules that it leaves, with `*` for layers and experts."""

# A pattern of words and `.*` says the same of all numbers: those stand between dots, never between letters.
_WORDS = re.compile(r"re:(\.\*|\\\.|[a-z_()|^$]|(?<=[a-z_])\.(?=[a-z_]))+", re.IGNORECASE)


def covers(entry: str, module: str) -> bool:
    """Whether an entry of a list names this module: by its name, the end of that, a parent, `*` or `re:`."""
    if entry.startswith("re:"):
        try:
            return re.match(entry[3:], module) is not None
        except re.error:
            raise ConfigError(f"{_WHERE}: {show(entry)} is not a regular expression") from None
    if "*" in entry:
        return fnmatchcase(module, entry) or fnmatchcase(module, f"{entry}.*")
    return f".{entry}." in f".{module}."


def by_layer(program: Program, entries: tuple[str, ...]) -> Apart:
    """What each layer leaves; `UnsupportedError` if that is so of some of its experts only."""
    layers = 1 + max((layer for at, _ in _modules(program) for layer in at.layers), default=0)
    found: list[set[str]] = [set() for _ in range(layers)]
    # Only these can tell one expert from another; the others are asked of one.
    numbers = tuple(e for e in entries if not _WORDS.fullmatch(e))
    telling = tuple(e for e in numbers if re.search(r"^re:|\*|^\d|experts\.\d", e))
    others = tuple(e for e in entries if e not in telling)
    # What has no digit, and `*` alone that may stand for one, says the same of all layers of a body.
    alike = not any(re.search(r"^re:|[\d?\[]", e) for e in numbers)
    for at, module in _modules(program) if entries else ():
        experts = _experts(at) if telling and "{expert}" in module and not alike else 1
        for layer in [at.layers.first] if alike else at.layers:
            names = [numbered(module, layer).replace("{expert}", str(i)) for i in range(experts)]
            left = {_named(others, names[0]) or _named(telling, name) for name in names}
            if len(left) > 1:
                fact = "some experts are left as they are; all or none is modelled"
                raise UnsupportedError(f"{_WHERE}: {names[0].rpartition('.0.')[0]}: {fact}")
            if left == {True}:
                for each in at.layers if alike else [layer]:
                    found[each].add(pattern(module))
    return tuple(map(frozenset, found))


def plan(program: Program, apart: Apart) -> str:
    """The part of a `quantize` plan that keeps them, by body where bodies differ; layers of one do not."""
    kept: dict[str, dict[str, bool]] = {}  # module -> op in its body -> whether it stays
    for at, module in _modules(program):
        [user] = {user.name for user, _ in at.graph.users[at.node.name]}
        kept.setdefault(pattern(module), {})[f"{at.graph.name}.{user}"] = (
            pattern(module) in apart[at.layers.first]
        )
    entries: list[str] = []
    for module, ops in kept.items():
        entries += [module] if all(ops.values()) else [op for op, stays in ops.items() if stays]
    return ", ".join(f"{entry}:keep" for entry in dict.fromkeys(entries))


def quantizes(program: Program, apart: Apart, blocks: frozenset[str] | None = None) -> bool:
    """Whether a matrix is left to quantize, in these blocks if they are stated."""
    return any(
        pattern(module) not in apart[at.layers.first]
        for at, module in _modules(program)
        if at.node.op.block != "router"  # which no method takes
        and (blocks is None or at.node.op.block in blocks)
    )


def pattern(module: str) -> str:
    """How a plan calls the module in all layers and experts."""
    return numbered(module, "*").replace("{expert}", "*")


def _named(entries: tuple[str, ...], name: str) -> bool:
    return any(covers(entry, name) for entry in entries)


def _modules(program: Program) -> Iterator[tuple[Instance, str]]:
    """The matrices of layers, and their modules."""
    for at in program.instances():
        if not layered(at.node.op.param):
            continue
        if any(slot in user.op.matrices for user, slot in at.graph.users[at.node.name]):
            yield at, stored(at.node.op.param).tensor.removesuffix(".weight")


def _experts(at: Instance) -> int:
    count: int = Binding()(at.node.results[0].shape[at.node.op.axes.index("expert")])
    return count
